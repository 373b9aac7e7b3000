"""Settings of training as a search: every setting is trained several times.

`hyperparameters` is the space, `trainings` does and stores the runs, `table` and `plots` show them.
"""
