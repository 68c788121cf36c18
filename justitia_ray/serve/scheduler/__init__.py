"""Scheduler actor of a model: leadership, driver of the core, outboxes, checkpoints and handle."""
