"""Quantise a model in one line: `command` as ``ch quantize``, `module` as `chop.quantize`."""
