"""Search spaces: the choices, and the meaning of each.

`space` has the tree of choices, the candidates and `SearchSpace`, which users' spaces derive from.
`mixed_precision` quantises a network: `variants` runs any configuration on one traced graph, and
`reuse` holds what one trial leaves for the next. `measure` runs the runners on a configuration, and
`samples` draws rows of a loader.
"""
