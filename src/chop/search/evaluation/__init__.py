"""What a candidate is, and how one is computed without building a model for each.

`context` holds what all candidates share: model, data, device. `variants` runs a quantised
candidate on one traced graph; `measure` turns a configuration into metrics and objectives.
"""
