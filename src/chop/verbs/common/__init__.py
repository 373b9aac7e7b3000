"""What verbs have in common: the session of a run, any rows and modules, what to run next."""
