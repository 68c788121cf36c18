"""Tests of the dashboard and the files of deployments/monitoring."""
