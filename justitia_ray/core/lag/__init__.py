"""Measures the lag of every application against GPS: an observer of the ledger, off by default."""
