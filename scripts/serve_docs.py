"""Serve the site of docs/ on this machine, and build it again when a page changes.

``python scripts/serve_docs.py [PORT]``. Where the port is taken, the next free one is used.
"""

import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = "127.0.0.1"
FIRST, TRIED = 8000, 20


def free_port(first: int) -> int:
    """The first port from here on that nobody listens to."""
    for port in range(first, first + TRIED):
        with socket.socket() as asked:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                asked.bind((HERE, port))
            except OSError:
                continue
        return port
    raise SystemExit(f"ports {first} to {first + TRIED - 1} are taken: make docs-serve PORT=9000")


def main() -> None:
    """Serve until Ctrl-C."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else FIRST
    port = free_port(wanted)
    if port != wanted:
        print(f"port {wanted} is taken")
    print(f"The site will be at http://{HERE}:{port}/ (Ctrl-C ends it)", flush=True)
    os.chdir(ROOT)
    options = ["--quiet", "--dev-addr", f"{HERE}:{port}"]
    os.execv(sys.executable, [sys.executable, "-m", "mkdocs", "serve", *options])


if __name__ == "__main__":
    main()
