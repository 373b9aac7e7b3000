"""Widths that learn: one training run whose snapshots are the trials of a search.

`setup` is what a file says of it and `space` what learns; `schedule` says what each step has.
`networks` trains the float network and its teacher on `rows`, `learning` trains the widths, and
`state` keeps all of it on disk. `search` makes trials of the snapshots.
"""
