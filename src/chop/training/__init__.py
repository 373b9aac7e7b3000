"""Training and testing on Lightning at the speed of a bare loop.

`fit` runs a `job` with `settings`; `module` is the loop over `batches`, `optimisers` and
`metrics` serve it. `state` makes resuming exact, `lightning_setup` saves checkpoints and starts
processes, `report` shows and writes what happens.
"""
