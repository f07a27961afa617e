"""Calls and large files that stores on S3 and on Cloud Storage are tried with alike."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.store.base import FileChanged, Store, open_store

CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("k"),
    "get_from": lambda store: store.get_from("k", 1),
    "head": lambda store: store.head("k"),
    "put": lambda store: store.put("k", b"x"),
    "create": lambda store: store.create("k", b"x"),
    "list": lambda store: list(store.list("")),
    "folders": lambda store: store.folders(""),
    "delete": lambda store: store.delete(["k"]),
}
_SEND_AND_FETCH = """
import resource, sys
from pathlib import Path
from stoker.store.base import open_store
store = open_store(sys.argv[1])
source, target = Path(sys.argv[2]), Path(sys.argv[2] + ".out")
store.put("k", b"x" * 2_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sent = store.put_file(source, lambda digest: digest)
assert store.get_file(sent.digest, target) == sent.digest
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def assert_changed_file_is_refused(url: str, folder: Path, open_uploads: Callable[[str], int]) -> None:
    """A file that changes while it is sent is never stored and leaves no upload open; unchanged, it is stored."""
    store = open_store(url)
    source = folder / "in"
    source.write_bytes(os.urandom(40_000_000))

    def key(digest: str) -> str:
        with source.open("r+b") as file:
            file.write(b"changed")
        return f"blobs/{digest}"

    with pytest.raises(FileChanged):
        store.put_file(source, key)
    assert list(store.list("")) == []
    assert open_uploads(url) == 0
    sent = store.put_file(source, lambda digest: f"blobs/{digest}")
    assert sent.moved == sent.size == 40_000_000


def assert_large_files_need_little_memory(url: str, folder: Path) -> None:
    """A process that sends a file and fetches it again needs less memory than half of its size."""
    size_mb = 256
    source = folder / "in"
    with source.open("wb") as file:
        file.truncate(size_mb << 20)
    ran = subprocess.run(
        [sys.executable, "-c", _SEND_AND_FETCH, url, str(source)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < size_mb / 2
