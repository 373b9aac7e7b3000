#!/bin/sh
# For the labs' habit of typing ./ch: the installed command, from this checkout's environment if it has one.
here=$(dirname "$0"); if [ -x "$here/.venv/bin/ch" ]; then exec "$here/.venv/bin/ch" "$@"; else exec python3 -m chop.cli "$@"; fi
