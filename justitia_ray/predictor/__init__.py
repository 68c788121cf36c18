"""Predictions of what an application will cost, made when it arrives; without Ray or Redis."""
