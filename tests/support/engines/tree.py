"""The image of tests: a Debian that machines boot, without what only a machine needs, and with an entry point."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from tests.support.machines.images import BOOKWORM, images_folder

IMAGE = "stoker-test:1"
# What `docker import` is told of it.
CHANGES = (
    'ENTRYPOINT ["/usr/local/bin/entry"]',
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "ENV FROM_IMAGE=yes",
    "ENV PYTHONPATH=/from/image",
)
# Tells the training that it was there, and has itself be told which arguments it got.
_ENTRY = b'#!/bin/sh\nexport FROM_ENTRY="$*"\nexec "$@"\n'
_LEFT_OUT = (
    *("./usr/lib/systemd", "./usr/lib/python3/dist-packages", "./usr/share/icons", "./usr/share/python-wheels"),
    *("./var/cache", "./var/lib/apt/lists", "./var/log", "./usr/lib/modules", "./lib/modules", "./usr/share/zoneinfo"),
)
_LINKS = {"./usr/local/bin/python": "/usr/bin/python3"}


def digest() -> str:
    """Changes with everything that goes in."""
    recipe = repr((BOOKWORM.path.name, IMAGE, CHANGES, _ENTRY, _LEFT_OUT, sorted(_LINKS.items())))
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def archive() -> Path:
    """The tree as a tarball, made now if it is missing. Raises CalledProcessError."""
    kept = images_folder() / f"container-{digest()}.tar"
    if not kept.exists():
        draft = kept.with_name(f".{kept.name}.tmp")
        left_out = [f"--exclude={name}" for name in _LEFT_OUT]
        subprocess.run(["tar", "-C", str(BOOKWORM.path), *left_out, "-cf", str(draft), "."], check=True)
        with tarfile.open(draft, "a") as tar:
            entry = tarfile.TarInfo("./usr/local/bin/entry")
            entry.mode, entry.size = 0o755, len(_ENTRY)
            tar.addfile(entry, io.BytesIO(_ENTRY))
            for name, target in _LINKS.items():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                tar.addfile(link)
        draft.rename(kept)
        for old in images_folder().glob("container-*.tar"):
            if old != kept:
                old.unlink(missing_ok=True)
    return kept
