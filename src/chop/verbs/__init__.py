"""The verbs of ``ch`` and of Python: each is one typed request and one function."""
