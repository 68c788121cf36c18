"""Scheduler actor: leadership, the core's driver, outboxes, checkpoints, its handle."""
