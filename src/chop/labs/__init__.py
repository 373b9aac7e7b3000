"""The import paths and signatures of the original that have no code of their own here."""
