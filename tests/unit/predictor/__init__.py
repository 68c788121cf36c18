"""Predictors: what is estimated, learned, trained, kept."""
