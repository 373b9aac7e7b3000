"""The front of a search: the trials that no other beats, how good they are, and what mattered."""
