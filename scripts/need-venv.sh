#!/bin/sh
# Make sure that this Python can make a virtual environment. Debian keeps that in a package of its own.
set -eu
python=$1
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then :; else
    echo "Stoker needs Python 3.10 or newer; say which with: make PYTHON=/path/to/python3" >&2
    exit 2
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
else
    echo "this Python has no venv; install it first: sudo apt-get install python3-venv" >&2
    exit 2
fi
