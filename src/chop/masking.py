"""Text that is never shown: passwords in URLs, and orders to a terminal."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "…"
SECRET_NAME = re.compile(
    r"pass|.*(?:password|passwd|passphrase|pwd|secret|token|api_?key)", re.IGNORECASE
)
"""The names of settings whose value nobody else may see: password, sslpassword, PGPASSWORD, pwd."""
USER_INFO = re.compile(r"(://[^\s:/@%]*(?:%(?!3A)[^\s:/@%]*)*)(?::|%3A)(\S{,2000})@", re.IGNORECASE)
"""``://user:password@``; the last @ ends it, as a password that is not encoded may hold others.

The limit keeps the time for a long text within a multiple of its length.
"""
NAME = re.compile(r"(?<![\w%])((?:[\w.+-]|%[0-9a-f]{2})+?)(?:\s*=\s*|%3D)", re.IGNORECASE)
"""The start of ``name=value``, as in the query of a URL and in libpq's connection strings."""
VALUE = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"     # libpq quotes a value that has spaces
    |[^\s&]*?(?=[]:,.;)'"}]*(?:[\s&]|$))        # what ends a sentence is not the value's
    """,
    re.VERBOSE,
)
URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
SEPARATORS = re.compile(r"[@:/?#&,;\s'\"]+")
SHORTEST_PIECE = 3
"""A shorter part of a password tells nothing, and taking it out would spoil any message."""
DEEPEST = 4
"""How many times a value may be percent-encoded."""


def mask_passwords(text: str) -> str:
    """`text` without the passwords that its URLs and connection strings hold."""
    if "=" not in text and "://" not in text and "%3" not in text:
        return text  # nearly every text there is
    text = USER_INFO.sub(rf"\1:{HIDDEN}@", text)
    return "".join(HIDDEN if is_secret else piece for is_secret, piece in _pieces(text))


def masked_url(url: str) -> str:
    """The same for a text that is one URL as a whole, although there may be spaces in it."""
    return mask_passwords(_without_spaces(url))


def _without_spaces(url: str) -> str:
    return re.sub(r"\s", lambda space: quote(space[0]), url)


def masked_values(value: Any) -> Any:
    """A setting, or a table of them, as it may be shown and stored."""
    if isinstance(value, str):
        return masked_url(value) if URL.match(value) else mask_passwords(value)
    if isinstance(value, dict):
        return {name: masked_values(each) for name, each in value.items()}
    if isinstance(value, list):
        return [masked_values(each) for each in value]
    return value


def without_secrets(message: str, url: str) -> str:
    """Return the message of a library about `url` with its secrets, also in parts, hidden."""
    url = _without_spaces(url)
    found = [password for _, password in USER_INFO.findall(url)]
    found += [piece for is_secret, piece in _pieces(url) if is_secret]
    secrets = {text for secret in found for text in (secret, unquote(secret))}
    pieces = {piece for secret in secrets for piece in (secret, *SEPARATORS.split(secret))}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= SHORTEST_PIECE:
            message = message.replace(piece, HIDDEN)
    return mask_passwords(message)


def _pieces(text: str, encoded: bool = True) -> Iterator[tuple[bool, str]]:
    """The parts of a text in turn: whether the value of a secret setting, and the part.

    Args:
        encoded: look also into values that are percent-encoded, as they may be a whole URL.
    """
    place = looked_at = 0
    while name := NAME.search(text, place):
        yield False, text[place : name.end()]
        place = name.end()
        is_secret = SECRET_NAME.fullmatch(unquote(name[1])) is not None
        if is_secret or (encoded and place >= looked_at):
            value = VALUE.match(text, place)
            looked_at = value.end() if value else place
            if is_secret or _is_secret_inside(text[place:looked_at]):
                yield True, text[place:looked_at]
                place = looked_at
    yield False, text[place:]


def _is_secret_inside(value: str) -> bool:
    decoded = value
    for _ in range(DEEPEST if "%" in value else 0):
        decoded = unquote(decoded)
        if USER_INFO.search(decoded) or any(secret for secret, _ in _pieces(decoded, False)):
            return True
    return False


def printable(text: str, keep: str = "") -> str:
    """Text without characters that a terminal would obey, which a file may have brought.

    These are control characters, line ends and marks of direction; they are shown as Python
    writes them.

    Args:
        keep: characters that are meant, such as the line ends of a table.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text
    )
