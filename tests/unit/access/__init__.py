"""Tests of credentials without a service."""
