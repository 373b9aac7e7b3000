"""The one door to the Hugging Face hub: `folder_of` decides whether a name may leave this machine.

It fetches files, for a name that the user gave. Whatever transformers does with files is done
`offline`, so that a name inside a file, such as that of a backbone, is never asked for.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from chop.errors import ConfigError

_SWITCH = threading.RLock()
"""The package of the hub has one switch for the whole process."""


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep transformers, and whatever else uses the package of the hub, from asking it."""
    from huggingface_hub import constants

    with _SWITCH:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


def folder_of(name: str, files: Sequence[str], *, named: bool) -> Path:
    """The folder on this machine that has the files of a repository of the hub.

    Args:
        files: patterns of their names; nothing else is fetched.
        named: whether the user gave this name, on the command line or in a call. A name that comes
            from a file is looked for in the cache of the hub alone.
    """
    from huggingface_hub import snapshot_download

    try:
        with _SWITCH:
            return Path(
                snapshot_download(name, allow_patterns=list(files), local_files_only=not named)
            )
    except Exception as error:  # connections fail in the ways of several packages
        if not named:
            raise ConfigError(
                f"the model 'hf:{name}' is not on this machine, and is fetched only if it is "
                f"named: write ch ACTION hf:{name} …"
            ) from None
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(f"hf:{name}: {reason}; hf:FOLDER names a local one") from error
