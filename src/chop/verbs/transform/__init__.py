"""Transform: run the passes of a configuration on a model."""
