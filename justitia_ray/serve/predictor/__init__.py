"""Predictor deployment: estimates, the learner, its store and its trainings."""
