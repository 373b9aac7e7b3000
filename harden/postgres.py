"""A PostgreSQL server of one's own, for as long as it is needed."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

SERVERS = Path("/usr/lib/postgresql")


def missing() -> str:
    """Why no server can be started here; empty if one can."""
    if not _binaries():
        return "no PostgreSQL server: apt install postgresql"
    if find_spec("psycopg") is None:
        return "no driver: pip install psycopg"
    if _user() and _user() not in {entry.pw_name for entry in pwd.getpwall()}:
        return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a server on a free port, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="chop-postgres-", dir="/tmp"))
    user = _user()
    if user:
        shutil.chown(folder, user)
    binaries, data, port = _binaries()[-1], folder / "data", _free_port()

    def run(program: str, *arguments: str) -> None:
        command = [str(binaries / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder)

    try:
        run("initdb", "-U", "chop", "--auth=trust", "-N")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-o", options, "-l", f"{folder}/log", "-w", "start")
        try:
            yield f"postgresql://chop@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def _binaries() -> list[Path]:
    return sorted(SERVERS.glob("*/bin")) if os.name == "posix" else []


def _user() -> str | None:
    """Who the server runs as: not root, which it refuses."""
    return "postgres" if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
