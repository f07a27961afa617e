"""Code that cannot be read while it is packed, and disks that have no room for it."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from stoker.model.errors import UserError
from stoker.submit.pack_code import pack


def put(path: Path, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize(
    ("number", "text", "said"),
    [
        (28, "No space left on device", r"^code: packing needs room in /.*: No space left on device$"),
        (122, "Disk quota exceeded", r"^code: packing needs room in /.*: Disk quota exceeded$"),
        (5, "Input/output error", r"^code: a\.py: cannot be read \(Input/output error\); put that right or list it in"),
        (None, "unexpected end of data", r"^code: a\.py: changed while it was packed; "),
    ],
)
def test_a_disk_that_fails_while_code_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, text: str, said: str
) -> None:
    put(tmp_path / "code/a.py")

    def fail(*_: object) -> None:
        raise OSError(number, text) if number is not None else OSError(text)

    monkeypatch.setattr(tarfile.TarFile, "addfile", fail)
    with pytest.raises(UserError, match=said):
        pack(tmp_path / "code")


def test_a_folder_or_a_file_of_rules_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "code/sub/a.py")
    put(tmp_path / "code/sub/.gitignore", "*.bin")
    listed, read = os.scandir, Path.read_text

    def scandir(path: Path) -> object:
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    def read_text(self: Path, **more: str) -> str:
        if self.name == ".gitignore":
            raise PermissionError(13, "Permission denied")
        return read(self, **more)

    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"^code: sub: cannot be read \(Permission"):
        patched.setattr(os, "scandir", scandir)
        pack(tmp_path / "code")
    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(UserError, match=r"^code: .*/code/sub/\.gitignore: cannot be read \(Permission denied\); "):
        pack(tmp_path / "code")
