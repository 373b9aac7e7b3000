"""Where users' data sets find `standardise`; it lives in `chop.dataset.rows`."""

from chop.dataset.rows import standardise

__all__ = ["standardise"]
