"""What a search found: best.json, log.json, trials.csv, pictures and progress.

`hypervolume` says how good a front is and `plots` which choices mattered.
"""
