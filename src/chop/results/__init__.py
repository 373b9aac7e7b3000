"""The results of runs: each a value that is saved, loaded and shown by one class."""
