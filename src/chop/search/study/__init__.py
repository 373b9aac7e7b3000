"""The stored study: trials, who works on them, and where they are kept.

`trial` is one trial as a value; `store` claims and finishes trials for several processes. `storage`
opens a journal file or a database, and `patience` waits for one that is away; `journal` reads and
writes that file; `workers` tells which processes are alive and when Ctrl-C may end one.
"""
