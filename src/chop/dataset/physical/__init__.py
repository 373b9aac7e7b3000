"""Data sets of measured or simulated physical events."""
