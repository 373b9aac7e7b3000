"""A PostgreSQL server of one's own, for as long as it is needed."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
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


class Server:
    """A server on a free port, in a folder of its own, that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"postgresql://chop@127.0.0.1:{self.port}"
        """Without the name of a database; there is one of the name postgres."""
        self._run("initdb", "-U", "chop", "--auth=trust", "-N")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        folder = self.folder
        options = f"-p {self.port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-o", options, "-l", f"{folder}/log", "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: immediate breaks all connections at once, as a crash does."""
        self._run("pg_ctl", "-m", mode, "-w", "stop")

    def is_running(self) -> bool:
        """Whether it is there."""
        return (self.folder / "data" / "postmaster.pid").exists()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(_binaries()[-1] / program), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=_user(), cwd=self.folder)


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A server that runs for as long as the block does."""
    folder = Path(tempfile.mkdtemp(prefix="chop-postgres-", dir="/tmp"))
    if user := _user():
        shutil.chown(folder, user)
    try:
        found = Server(folder)
        found.start()
        try:
            yield found
        finally:
            if found.is_running():
                found.stop()
    finally:
        shutil.rmtree(folder)


def new_database(url: str) -> str:
    """The URL of a new database of a server."""
    import psycopg

    name = f"test_{time.monotonic_ns()}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url}/{name}"


def _binaries() -> list[Path]:
    return sorted(SERVERS.glob("*/bin")) if os.name == "posix" else []


def _user() -> str | None:
    """Who the server runs as: not root, which it refuses."""
    return "postgres" if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
