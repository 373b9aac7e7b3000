"""Integer programs as C."""
