"""A run as one HTML page: `read` finds the facts, `sections` describe them, `html` writes them.

`page` puts the sections together.
"""
