"""The parts of the page, one module for each kind of result.

A section is left out where a run has no such result; a damaged file costs its own section only.
"""
