"""Views of results: the terminal, and a run as one HTML page.

`page` puts the page together from `sections`; `svg` draws the charts of it.
"""
