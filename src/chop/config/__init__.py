"""Settings: what there is to set, who set it, and what is in effect.

`run` declares every setting of a run once, `verb` is the registry of verbs and their requests,
`command_line` turns words into values, and `layers` joins default, file and command line. From the
same declarations come the `schema` of files and the reference `pages`.
"""
