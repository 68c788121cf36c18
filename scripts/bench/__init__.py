"""Measuring a running service from outside: load, CPU time, statistics, reports. No Ray in here."""
