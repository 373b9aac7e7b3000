"""Settings: what there is to set, who set it, and what is in effect."""
