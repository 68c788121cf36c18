"""Tests of the predictor's deployment."""
