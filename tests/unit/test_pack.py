"""Packing code: what goes in, what stays out, and that the digest is of the content alone."""

from __future__ import annotations

import gzip
import importlib
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from stoker.agent.unpack_code import code_digest, unpack
from stoker.model.errors import UserError
from stoker.submit import pack_code as packing
from stoker.submit.pack_code import PackedCode, pack


def write(root: Path, **files: str) -> None:
    for name, content in files.items():
        put(root / name.replace("__", "/"), content)


def put(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def names(packed: PackedCode) -> list[str]:
    with tarfile.open(packed.path) as tar:
        return tar.getnames()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    put(folder / "train.py", "print('hello')\n")
    put(folder / "pkg/model.py", "x = 1\n")
    put(folder / "run.sh", "#!/bin/sh\n").chmod(0o700)
    (folder / "empty").mkdir()
    (folder / "link.py").symlink_to("pkg/model.py")
    return folder


def test_what_is_packed_comes_out_again(code: Path, tmp_path: Path) -> None:
    with pack(code) as packed:
        assert names(packed) == ["empty", "link.py", "pkg/model.py", "run.sh", "train.py"]
        assert packed.files == 4
        assert packed.size == packed.path.stat().st_size
        assert packed.code.digest == packed.digest == code_digest(packed.path)
        unpack(packed.path, tmp_path / "out", packed.digest)
    assert not packed.path.exists()
    out = tmp_path / "out"
    assert (out / "train.py").read_text() == "print('hello')\n"
    assert (out / "link.py").readlink() == Path("pkg/model.py")
    assert (out / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "train.py").stat().st_mode & 0o777 == 0o644
    assert list((out / "empty").iterdir()) == []


def test_same_content_same_digest(code: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "deep"
    other.mkdir(parents=True)
    # Made in another order, at another time, with other modes, by nobody.
    (other / "link.py").symlink_to("pkg/model.py")
    (other / "empty").mkdir(mode=0o700)
    for name in ("run.sh", "train.py", "pkg/model.py"):
        put(other / name, (code / name).read_text()).chmod(0o775 if name == "run.sh" else 0o600)
        os.utime(other / name, (1, 1))
    put(other / "__pycache__/x.pyc")
    with pack(code) as one, pack(other) as two:
        assert one.digest == two.digest
        assert one.path.read_bytes() == two.path.read_bytes()
        header = one.path.read_bytes()[:10]
        assert header[3] == 0, "no name in the gzip header"
        assert header[4:8] == b"\0\0\0\0", "no time in the gzip header"
    put(other / "train.py", "print('hullo')\n")
    with pack(other) as three:
        assert three.digest != one.digest


def test_the_digest_is_the_same_everywhere(tmp_path: Path) -> None:
    """A change here means that everybody's code is uploaded once more: it must be on purpose."""
    put(tmp_path / "a.py", "a\n")
    put(tmp_path / f"{'long' * 30}/ünï.py", "b\n").chmod(0o755)
    (tmp_path / "l").symlink_to("a.py")
    with pack(tmp_path) as packed:
        assert packed.digest == "3e736f1719035bde3ecb2086c366531359e4a9cb14588710fa6293d6641e0edb"


def test_modes_and_owners_are_normalised(code: Path) -> None:
    with pack(code) as packed, tarfile.open(packed.path) as tar:
        for member in tar:
            assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
            assert member.mode in (0o644, 0o755)


def test_ignore_files_at_every_depth(tmp_path: Path) -> None:
    put(tmp_path / ".gitignore", "*.log\n/build/\ndata/*\n!data/keep.txt\nlogs/**\n!logs/important\n")
    put(tmp_path / "sub/.gitignore", "!debug.log\n/only-here\n")
    for name in (
        "a.log",
        "a.py",
        "build/x",
        "sub/build/x",
        "data/big",
        "data/keep.txt",
        "logs/x",
        "logs/important",
        "sub/debug.log",
        "sub/other.log",
        "sub/only-here",
        "only-here",
    ):
        put(tmp_path / name)
    with pack(tmp_path) as packed:
        assert names(packed) == sorted(
            [
                ".gitignore",
                "a.py",
                "sub/build/x",
                "data/keep.txt",
                "logs/important",
                "sub/.gitignore",
                "sub/debug.log",
                "only-here",
            ]
        )


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge here")
def test_git_itself_agrees_on_what_is_ignored(tmp_path: Path) -> None:
    put(
        tmp_path / ".gitignore",
        "*.log\n/build/\ndata/*\n!data/keep\nlogs/**\n!logs/keep\n**/tmp/\nfoo/bar\n\\#odd\n?x\n",
    )
    put(tmp_path / "a/.gitignore", "!*.log\nb/\n!b/c\n*.md\n")
    for folder in ("", "a/", "a/b/", "build/", "data/", "logs/", "tmp/", "a/tmp/", "foo/", "a/foo/bar/", "data/d/"):
        for name in ("x.log", "x.py", "keep", "c", "bar", "#odd", "1x", "r.md"):
            path = tmp_path / folder / name
            if not path.exists():
                put(path)
    _git(tmp_path, "init", "-q")
    listed = _git(tmp_path, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    with pack(tmp_path) as packed:
        assert set(names(packed)) == {name for name in listed if name}


def test_stokerignore_adds_and_takes_back(tmp_path: Path) -> None:
    put(tmp_path / ".gitignore", "weights.bin\n")
    put(tmp_path / ".stokerignore", "!weights.bin\nnotes/\n")
    put(tmp_path / "weights.bin")
    put(tmp_path / "notes/a.md")
    with pack(tmp_path) as packed:
        assert names(packed) == [".gitignore", ".stokerignore", "weights.bin"]


def test_rules_above_the_folder_count_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    put(tmp_path / ".gitignore", "*.txt\n")
    repo = tmp_path / "repo"
    put(repo / ".gitignore", "*.log\n/sub/code/private\nbuild/\n")
    for folder in (repo / "sub/code", repo / "build"):
        for name in ("a.log", "a.txt", "a.py", "private"):
            put(folder / name)
    with pack(repo / "sub/code") as packed:
        assert names(packed) == ["a.log", "a.py", "a.txt", "private"], (
            "without a repository, only what is inside counts"
        )
    (repo / ".git").mkdir()
    with pack(repo / "sub/code") as packed:
        assert names(packed) == ["a.py", "a.txt"]
    with pack(repo / "build") as packed:
        assert names(packed) == ["a.log", "a.py", "a.txt", "private"], "a folder asked for by name is not ignored"


def test_what_is_never_code(tmp_path: Path) -> None:
    put(tmp_path / ".stokerignore", "!.git\n!__pycache__\n!env\n")
    put(tmp_path / "a.py")
    for name in (".git/config", ".stoker/x", "__pycache__/a.pyc", "p/__pycache__/x", ".mypy_cache/x", "b.pyc"):
        put(tmp_path / name)
    for name in (".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".DS_Store"):
        put(tmp_path / name)
        put(tmp_path / "p" / name / "x")
    put(tmp_path / "env/pyvenv.cfg")
    put(tmp_path / "env/lib/x.py")
    put(tmp_path / "venv/not-a-venv.py")
    put(tmp_path / "worktree/.git", "gitdir: elsewhere")
    with pack(tmp_path) as packed:
        assert names(packed) == [".stokerignore", "a.py", "venv/not-a-venv.py"]


def test_excluded_folders(code: Path) -> None:
    put(code / "checkpoints/a.pt")
    put(code / "deep/outputs/a")
    put(code / "deep/outputs-of-mine/a")
    with pack(code, exclude=["checkpoints", "./deep/outputs/", "../elsewhere", "/tmp", "."]) as packed:
        assert not any(name.startswith(("checkpoints", "deep/outputs/")) for name in names(packed))
        assert "deep/outputs-of-mine/a" in names(packed)
    with pack(code, exclude=[str(code / "checkpoints")]) as packed:
        assert "checkpoints/a.pt" not in names(packed)


def test_links(tmp_path: Path) -> None:
    code = tmp_path / "code"
    put(tmp_path / "secret")
    put(code / "a/b/file")
    links = {
        "a/up": "../a/b",
        "absolute": str(code / "a/b/file"),
        "dangling": "not-there",
        "root": ".",
        "a/root": "..",
        "roundabout": "../code/a",
        "through": "a/up/../b",
    }
    outside = {"out": "../secret", "out-abs": "/etc/passwd", "a/out-dir": "../..", "out-dangling": "../gone"}
    for name, target in {**links, **outside}.items():
        (code / name).symlink_to(target)
    with pack(code) as packed:
        assert sorted(names(packed)) == sorted(["a/b/file", *links])
        for name in outside:
            assert any(warning.startswith(f"{name} is a link out of the code folder") for warning in packed.warnings)
        unpack(packed.path, tmp_path / "out", packed.digest)
    out = tmp_path / "out"
    for name in links:
        target = Path(os.path.realpath(code / name)).relative_to(code)
        assert Path(os.path.realpath(out / name)) == out / target
        assert not (out / name).readlink().is_absolute()


def test_a_chain_of_links_that_ends_outside_is_left_out(tmp_path: Path) -> None:
    code = tmp_path / "code"
    put(tmp_path / "secret")
    code.mkdir()
    (code / "second").symlink_to("../secret")
    (code / "first").symlink_to("second")
    with pack(code) as packed:
        assert names(packed) == []
        assert len(packed.warnings) == 2


def test_a_folder_reached_through_a_link_is_packed_as_itself(code: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(code)
    with pack(code) as one, pack(tmp_path / "alias", exclude=[str(tmp_path / "alias" / "x")]) as two:
        assert one.digest == two.digest


def test_sockets_and_pipes_are_skipped(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(code / "pipe")
    monkeypatch.chdir(code)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pack(code) as packed:
            assert {"pipe", "socket"}.isdisjoint(names(packed))


def test_odd_names(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    odd = [b"sp ace", b"new\nline", b"b\xff\xfe", "ünï".encode(), b"-dash", b"a" * 200]
    for name in odd:
        (code / os.fsdecode(name)).write_text("x")
    with pack(code) as packed:
        unpack(packed.path, tmp_path / "out", packed.digest)
    assert sorted(os.fsencode(path.name) for path in (tmp_path / "out").iterdir()) == sorted(odd)


def test_what_cannot_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        pack(tmp_path / "none")
    with pytest.raises(UserError, match="is not a folder"):
        pack(put(tmp_path / "file"))
    into = tmp_path / "into"
    into.mkdir()
    put(tmp_path / "code/locked.py")
    real_open = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "locked.py":
            raise PermissionError(13, "Permission denied")
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"^code: locked\.py: cannot be read \(Permission denied\); .*\.stokerignore"):
        pack(tmp_path / "code", into=into)
    assert list(into.iterdir()) == [], "nothing is left behind"


def test_an_interruption_after_the_files_were_listed_leaves_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "code/a.py")
    (tmp_path / "into").mkdir()

    def interrupted(*_any: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(packing, "revision", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "code", into=tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


def test_large_code_is_warned_about_by_its_largest_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WARN_ABOVE_BYTES", 5_000_000)
    put(tmp_path / "a.py", "x")
    for n in range(4):
        put(tmp_path / f"data/images/{n}.jpg", "x" * 500_000)
    put(tmp_path / "deep/er/model.bin", "x" * 3_000_000)
    put(tmp_path / "notes.txt", "x" * 1_000_000)
    with pack(tmp_path) as packed:
        (warning,) = packed.warnings
    assert warning.startswith(
        "the code is 6 MB; the largest: deep/er/model.bin (3 MB), data/images/ (2 MB), notes.txt (1 MB)."
    )
    monkeypatch.setattr(packing, "WARN_ABOVE_BYTES", 7_000_000)
    with pack(tmp_path) as packed:
        assert packed.warnings == ()


def test_a_folder_is_named_by_what_makes_it_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WARN_ABOVE_BYTES", 19)
    put(tmp_path / "one/of/it", "x" * 9)
    put(tmp_path / "one/rest", "x")
    put(tmp_path / "many/a", "x" * 8)
    put(tmp_path / "many/b", "x" * 2)
    with pack(tmp_path) as packed:
        (warning,) = packed.warnings
    assert "the largest: many/ (0 MB), one/of/it (0 MB)." in warning
    monkeypatch.setattr(packing, "WARN_ABOVE_BYTES", 20)
    with pack(tmp_path) as packed:
        assert packed.warnings == ()


def test_files_that_hold_secrets_are_warned_about(tmp_path: Path) -> None:
    put(tmp_path / ".env", "KEY=1")
    with pack(tmp_path) as packed:
        assert packed.warnings == (".env goes into the bucket as it is; keep secrets out with .stokerignore",)
    put(tmp_path / ".stokerignore", ".env\n")
    with pack(tmp_path) as packed:
        assert packed.warnings == ()


# ── git ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_and_dirty_flag(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> tuple[str | None, bool | None]:
        with pack(code, exclude=["checkpoints"]) as packed:
            return packed.commit, packed.dirty

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(code.parent))
    assert state() == (None, None)
    _git(code, "init", "-q")
    assert state() == (None, True)
    _git(code, "add", ".")
    _git(code, "commit", "-qm", "first")
    commit = _git(code, "rev-parse", "HEAD").strip()
    assert state() == (commit, False)
    put(code / "checkpoints/a.pt")
    put(code / ".stoker/x")
    assert state() == (commit, False), "what is not packed makes nothing dirty"
    put(code / "new.py")
    assert state() == (commit, True), "a file that git never saw counts"
    put(code / ".gitignore", "new.py\n")
    _git(code, "add", ".gitignore")
    _git(code, "commit", "-qm", "second")
    assert state() == (_git(code, "rev-parse", "HEAD").strip(), False), "an ignored one does not"
    put(code / "train.py", "changed")
    assert state()[1] is True


def test_without_git_nothing_is_recorded(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pack(code) as packed:
        assert (packed.commit, packed.dirty) == (None, None)


def test_the_archive_is_an_ordinary_one(code: Path) -> None:
    with pack(code) as packed:
        assert gzip.decompress(packed.path.read_bytes())


# ── Folders that cannot be meant ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "folder", ["/", "/proc", "/proc/self", "/sys", "/sys/kernel", "/dev", "/usr", "/etc", "/run", "/var"]
)
@pytest.mark.timeout(60)
def test_a_folder_of_the_system_is_refused_in_one_line(folder: str, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    for path in (Path(folder), linked):
        with pytest.raises(UserError, match=r"^code: /.*; name the folder that holds the script$"):
            pack(path)


@pytest.mark.timeout(60)
def test_pipes_in_the_folder_hold_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    for name in (".gitignore", ".stokerignore", "pipe"):
        os.mkfifo(tmp_path / name)
    with pack(tmp_path) as packed:
        assert packed.names == {"train.py"}
    with pytest.raises(UserError, match="is not a folder"):
        pack(tmp_path / "pipe")


def test_more_than_code_can_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x")
    monkeypatch.setattr(importlib.import_module("stoker.submit.pack_code"), "MOST_FILES", 4)
    with pytest.raises(UserError, match=r"holds more than 4 files, at .*\.stokerignore"):
        pack(tmp_path)
    monkeypatch.setattr(importlib.import_module("stoker.submit.pack_code"), "MOST_FILES", 5)
    monkeypatch.setattr(importlib.import_module("stoker.submit.pack_code"), "MOST_BYTES", 5)
    with pack(tmp_path) as packed:
        assert packed.files == 5, "as much as it may be"
    monkeypatch.setattr(importlib.import_module("stoker.submit.pack_code"), "MOST_BYTES", 4)
    with pytest.raises(UserError, match=r"holds more than 0 MB, at "):
        pack(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.import_module("stoker.submit.pack_code"), "MOST_FILES", 5)
    os.truncate(tmp_path / "0.txt", 11 * 1000**3)
    with pytest.raises(UserError, match=r"holds more than 10,000 MB"):
        pack(tmp_path)


@pytest.mark.parametrize(
    ("mounted", "made_up", "refused"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_only_what_the_kernel_makes_up_and_is_mounted_inside_is_refused(
    code: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool, made_up: bool, refused: bool
) -> None:
    """Data on another disk is data; code on a filesystem in memory is code."""
    monkeypatch.setattr(packing, "is_kernel_filesystem", lambda _device: made_up)
    walk = packing._Walk(code, frozenset())
    if mounted:
        walk._device += 1
    if refused:
        with pytest.raises(UserError, match=r"code: .* belongs to the operating system; list it in \.stokerignore"):
            list(walk.entries())
    else:
        assert "train.py" in [entry.name for entry in walk.entries()]
