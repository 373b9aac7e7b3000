"""Sensitivity: what each layer loses at several widths, and a search that follows from it."""
