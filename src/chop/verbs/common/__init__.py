"""Parts that verbs share: the session of a run, any rows and modules, the next commands."""
