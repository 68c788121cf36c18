"""Tests of the lag behind GPS."""
