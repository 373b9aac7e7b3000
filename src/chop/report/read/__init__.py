"""What the files of a run say, as typed facts: searches and saved graphs."""
