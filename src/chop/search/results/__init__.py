"""What a search found: progress, best.json, log.json, trials.csv and pictures.

`files` says and writes it; `hypervolume` tells how good a front is and `plots` which choices
mattered.
"""
