"""Predict: a table of predictions for the rows of a file."""
