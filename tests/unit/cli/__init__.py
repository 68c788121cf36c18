"""Tests of the `justitia` command."""
