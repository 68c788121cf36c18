"""Tests of the predictors: estimates, observations, training and storage."""
