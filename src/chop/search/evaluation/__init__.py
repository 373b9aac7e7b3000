"""How a quantised candidate is computed without building a model for each.

`variants` runs any configuration on one traced graph. `reuse` holds what one trial leaves for the
next: results within a budget of bytes, parsed formats, counted bits.
"""
