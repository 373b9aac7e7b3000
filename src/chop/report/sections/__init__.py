"""One module for each part of the page; each gives a `Section` or nothing."""
