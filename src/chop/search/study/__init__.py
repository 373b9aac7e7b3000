"""The stored study: trials, who works on them, and where they are kept.

`store` claims and finishes trials for several processes. `storage` opens a journal file or a
database; `journal` reads and writes that file; `workers` tells which processes are alive.
"""
