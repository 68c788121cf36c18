"""Tests of virtual time and of fair shares."""
