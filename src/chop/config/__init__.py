"""Settings: what there is to set, who set it, and what is in effect.

`run` declares every setting once, `command_line` turns words into settings, and `layers` joins
default, file and command line. From the same declarations come the `schema` of files, the
`completion` of shells and the reference `pages`.
"""
