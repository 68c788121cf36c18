"""Tests of the policies of the lab."""
