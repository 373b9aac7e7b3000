"""Samplers compared on one space, each with several seeds.

`runs` does the searches and shares their results; `comparison` makes numbers and a picture of them.
"""
