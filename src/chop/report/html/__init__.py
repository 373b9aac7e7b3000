"""HTML and SVG: escaped markup and charts that know nothing of runs."""
