"""Suites that every implementation of an interface passes."""
