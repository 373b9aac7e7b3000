"""Training and testing: one loop, the parts that are given to it, and the engines that it runs on.

`fit` runs a `job` with `settings`: it gives the `loop` its `parts` and an engine, which for several
devices or mixed precision is that of `distributed`. `batches`, `optimisers` and `metrics` serve the
loop, `checkpoint` makes resuming exact, `report` shows and writes the metrics of a run.
"""
