"""Start processes that outlive the command that starts them, in another folder than the one a person works in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

# Names of variables that hold a path, by how programs call them: GOOGLE_APPLICATION_CREDENTIALS, AWS_CONFIG_FILE,
# SSL_CERT_DIR, KUBECONFIG. AWS_PROFILE is none.
_PATHS = re.compile(r"((^|_)FILE|DIR|HOME|CONFIG|CREDENTIALS|BUNDLE|STORE|SOCK|PREFIX|EXE|NETRC|TMP|TEMP|VIRTUAL_ENV)$")
# Lists of paths, such as PATH and PYTHONPATH.
_LISTS = re.compile(r"PATH$")


def start_detached(module: str, arguments: Iterable[str], output: Path, handle: int) -> subprocess.Popen[bytes]:
    """Run a module of Stoker. It inherits `handle`, and writes to the end of the file `output`. Raises OSError."""
    with output.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Its own session: closing the terminal does not end it, and signals to the terminal do not reach it.
            start_new_session=True,
            # Not in the caller's folder, which may be deleted or unmounted while it runs.
            cwd=output.parent,
            env=absolute_environment(),
            pass_fds=(handle,),
        )


def absolute_environment(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> dict[str, str]:
    """Return the environment (by default this process's) with the relative paths in it made absolute.

    They are relative to `folder`, by default the working folder. Only variables whose names stand for paths are
    changed, and of these only values that name something that exists. A process that is to outlive a command gets
    absolute paths instead of its working folder: staying there would keep its disk from being unmounted, and the folder
    may be deleted.
    """
    environ = os.environ if environ is None else environ
    try:
        folder = Path.cwd() if folder is None else folder
    except OSError:
        # The working folder was deleted: nothing relative to it exists.
        return dict(environ)

    def absolute(value: str) -> str:
        path = folder / value
        return os.fspath(path) if value and not value.startswith("/") and _exists(path) else value

    found = {}
    for name, value in environ.items():
        if _LISTS.search(name):
            value = os.pathsep.join(map(absolute, value.split(os.pathsep)))
        elif _PATHS.search(name):
            value = absolute(value)
        found[name] = value
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
