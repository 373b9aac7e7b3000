"""Every quantised module, one file for each operation: ``linear.LinearInteger``."""
