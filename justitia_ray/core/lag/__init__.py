"""The lag of applications against GPS: an observer of the ledger, which the core does not know."""
