"""Export: a saved graph in a form that needs neither PyTorch nor Machop."""
