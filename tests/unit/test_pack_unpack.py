"""Unpacking on a node: an archive can be anything, the folder around it stays as it was."""

from __future__ import annotations

import io
import os
import re
import tarfile
from pathlib import Path

import pytest

from stoker.agent.unpack_code import code_digest, unpack
from stoker.model.errors import CodecError


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def archive(folder: Path, *members: tarfile.TarInfo) -> Path:
    path = folder / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            if info.isreg():
                info.size = 4
                tar.addfile(info, io.BytesIO(b"evil"))
            else:
                tar.addfile(info)
    return path


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


LINK, DIR = tarfile.SYMTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [member("/abs")],
        [member("../up")],
        [member("a/../../up")],
        [member("a"), member("a/../b")],
        [member("..", DIR)],
        [member("")],
        [member("a", LINK, "/etc/passwd")],
        [member("a", LINK, "..")],
        [member("a/b", LINK, "../../x")],
        [member("a", LINK, "b/../../x")],
        [member("a", LINK, "")],
        # A link in the place of a folder that a later file goes through.
        [member("d", LINK, "."), member("d/x")],
        [member("d/e"), member("d", LINK, ".")],
        # Climbing from behind another link.
        [member("p/q/s", LINK, "../.."), member("p/q/t", LINK, "s/../x")],
        [member("s", LINK, "p"), member("p/x"), member("s/t", LINK, "..")],
        [member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [member("a", tarfile.LNKTYPE, "b")],
        [member("a", tarfile.CHRTYPE)],
        [member("a", tarfile.FIFOTYPE)],
        [member("a"), member("a")],
        [member("a"), member("a/b")],
        [member("a"), member("a", DIR)],
        [member("a"), member("a", LINK, "b")],
    ],
)
def test_tricks_are_refused_and_leave_nothing(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    path = archive(tmp_path, *members)
    with pytest.raises(CodecError, match=r"^code: "):
        unpack(path, tmp_path / "node" / "code", code_digest(path))
    assert everything(tmp_path) == ["code.tar.gz", "node"]


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([member("../up")], "'../up' leads out of the folder"),
        ([member("a/../b")], "'a/../b' leads out of the folder"),
        ([member("/abs")], "'/abs' leads out of the folder"),
        ([member("a", LINK, "/etc/passwd")], "'a' is a link out of the folder"),
        ([member("a", LINK, "")], "'a' is a link out of the folder"),
        ([member("a/b", LINK, "../../x")], "'a/b' is a link out of the folder"),
        ([member("s", LINK, "p"), member("p/x"), member("s/t", LINK, "u")], "'s/t' lies behind a link"),
        ([member("a", tarfile.FIFOTYPE)], "'a' is neither file, folder nor link"),
        ([member("a"), member("a")], "'a' is there twice"),
        ([member("a"), member("a", LINK, "b")], "'a' is there twice"),
        ([member("a"), member("a/b")], "a name is both a file and a folder: "),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, members: list[tarfile.TarInfo], why: str) -> None:
    path = archive(tmp_path, *members)
    with pytest.raises(CodecError, match=f"^code: {re.escape(why)}"):
        unpack(path, tmp_path / "code", code_digest(path))


def test_set_user_id_bits_do_not_survive(tmp_path: Path) -> None:
    path = archive(tmp_path, member("a", mode=0o6777), member("b", mode=0o000))
    unpack(path, tmp_path / "out", code_digest(path))
    assert (tmp_path / "out/a").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "out/b").stat().st_mode & 0o7777 == 0o644


def test_the_digest_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    path = archive(tmp_path, member("a"))
    with pytest.raises(CodecError, match=r"^code: expected digest 0000, found [0-9a-f]{64}"):
        unpack(path, tmp_path / "out", "0000")
    assert everything(tmp_path) == ["code.tar.gz"]


@pytest.mark.parametrize("cut", [0, 1, 30, -8])
def test_damaged_archives(tmp_path: Path, cut: int) -> None:
    path = archive(tmp_path, member("a"))
    digest = code_digest(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CodecError):
        unpack(path, tmp_path / "out", digest)
    path.write_bytes(b"not gzip at all")
    with pytest.raises(CodecError, match=r"^code: the archive is damaged"):
        unpack(path, tmp_path / "out", digest)
    assert everything(tmp_path) == ["code.tar.gz"]


def test_gzip_of_something_else(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "code.tar.gz"
    path.write_bytes(gzip.compress(b"hello" * 1000))
    with pytest.raises(CodecError, match=r"^code: not a tar archive"):
        unpack(path, tmp_path / "out", code_digest(path))


def test_an_unpacking_that_was_cut_short_can_be_repeated(tmp_path: Path) -> None:
    path = archive(tmp_path, member("a"))
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "left-over").touch()
    (tmp_path / "out").mkdir()
    unpack(path, tmp_path / "out", code_digest(path))
    assert everything(tmp_path / "out") == ["a"]
    with pytest.raises(OSError, match="not empty"):
        unpack(path, tmp_path / "out", code_digest(path))
    assert everything(tmp_path) == ["code.tar.gz", "out", "out/a"]


def test_folders_above_are_made(tmp_path: Path) -> None:
    path = archive(tmp_path, member("d", DIR), member("d/x"))
    for place in ("a/deep/place", "a/deep/other"):
        unpack(path, tmp_path / place, code_digest(path))
        assert everything(tmp_path / place) == ["d", "d/x"] and (tmp_path / place / "d/x").read_bytes() == b"evil"


def test_good_links_are_made(tmp_path: Path) -> None:
    path = archive(tmp_path, member("d/x"), member("d/up", LINK, "../d/x"), member("here", LINK, "."))
    unpack(path, tmp_path / "out", code_digest(path))
    assert os.path.realpath(tmp_path / "out/d/up") == str(tmp_path / "out/d/x")
    assert os.path.realpath(tmp_path / "out/here") == str(tmp_path / "out")
