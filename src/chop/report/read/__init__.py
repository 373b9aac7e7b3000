"""What the files of a run say, as typed values: saved graphs, and searches.

Nothing here is trusted: what a file should not hold raises an error that names the file.
"""
