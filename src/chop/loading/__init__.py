"""Loading of what users name: networks, records of projects, text, their own code.

`paths` says what ``--load`` means, `networks` loads weights and graphs, `records` reads what a
project knows, `user_code` imports users' files, and `tokenized` makes rows of text.
"""
