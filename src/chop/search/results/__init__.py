"""What a search found: progress, best.json, log.json, trials.csv and pictures.

`files` says and writes it; `front` tells how good a front is and which choices mattered, and draws
both.
"""
