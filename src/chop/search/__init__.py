"""Searching: which configurations to try, what they are worth, and the best of them.

`config` reads `[search]`, `strategy` runs the loop, `samplers` propose and `runners` measure;
`processes` lets several of them share one study. The folders below hold what these use: `spaces`,
`evaluation`, `study`, `results`; `sweeps` and `comparison` are whole experiments on top.
"""
