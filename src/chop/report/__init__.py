"""A run as one HTML page.

`read` turns files into facts, `sections` describes them, `html` writes markup and draws charts;
`page` puts the sections together. The package is callable: ``chop.report(project)``.
"""

from chop.callables import callable_package

callable_package(__name__, "chop.api.running", "report")
