"""A run as one page that a person can read: files to facts, facts to HTML."""
