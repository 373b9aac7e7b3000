"""What can be chosen: a tree of choices, and the space that gives a configuration its meaning.

A space makes a candidate of a configuration. `mixed_precision` quantises a network; spaces of
users derive from `SearchSpace` in `space`.
"""
