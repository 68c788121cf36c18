"""Tests of virtual time and of shares."""
