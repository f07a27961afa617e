"""What all unit tests share."""

from __future__ import annotations

import gzip
import hashlib
import sys
import time
from types import SimpleNamespace

import pytest

_compressed: dict[tuple[str, int], bytes] = {}


@pytest.fixture(autouse=True)
def free_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scans cost nothing, unless a test says otherwise: a scan that a busy computer makes dear is followed by a
    longer pause, and worlds with a virtual clock wait for a fixed time."""
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)


@pytest.fixture(autouse=True)
def programs_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compress each program for machines once in this process, unless a test says otherwise: tests have homes of their
    own, and a program is megabytes."""
    node_programs = sys.modules.get("stoker.submit.node_programs")
    if node_programs is not None:
        monkeypatch.setattr(node_programs, "gzip", SimpleNamespace(compress=_compress_once))


def _compress_once(data: bytes, level: int, *, mtime: int) -> bytes:
    key = (hashlib.sha256(data).hexdigest(), level)
    if key not in _compressed:
        _compressed[key] = gzip.compress(data, level, mtime=mtime)
    return _compressed[key]
