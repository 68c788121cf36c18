"""Parts that tests of several folders use: a running service and its callers, chaos, simulation."""
