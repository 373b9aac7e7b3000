"""A run as one HTML page.

`read` turns files into facts, `sections` describes them, `html` writes markup and draws charts;
`page` puts the sections together.
"""
