"""Tests of the service without Ray."""
