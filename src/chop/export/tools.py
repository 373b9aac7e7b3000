"""Programs that an export calls: compilers, simulators, synthesis."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from chop.errors import ConfigError, GraphError


def run_tool(
    command: Sequence[str],
    text: str = "",
    folder: Path | None = None,
    good: tuple[int, ...] = (0,),
) -> str:
    """What a command prints; its first complaint if it fails.

    Args:
        folder: where it runs.
        good: exit codes that are no failure.
    """
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, cwd=folder
        )
    except OSError as error:  # such as a folder for temporary files where nothing may run
        raise ConfigError(f"export: {command[0]} cannot be run: {error.strerror}") from None
    if done.returncode not in good:
        complaint = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise GraphError(f"export: {Path(command[0]).name} failed: {complaint}")
    return done.stdout or done.stderr
