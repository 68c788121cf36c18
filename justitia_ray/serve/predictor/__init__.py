"""Predictor deployment: estimates, the learning from finished applications, and training."""
