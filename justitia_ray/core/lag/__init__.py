"""The lag of every application against GPS, measured: an observer of the ledger, off by default."""
