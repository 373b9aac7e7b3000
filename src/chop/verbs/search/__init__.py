"""Search for quantisation settings.

`job` runs a search, `files` writes what it found, `comparing` compares samplers; `front` is
`chop.search`.
"""
