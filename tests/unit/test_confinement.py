"""A container cannot make the agent, which runs outside, read, write or delete files of the machine."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import JOB, World, content, manifest_keys, memory_store, restored_content, write

from stoker.agent import job_folders, sagemaker_scripts
from stoker.agent.checkpoints import restore
from stoker.agent.checkpoints.commit_queue import CommitQueue
from stoker.agent.checkpoints.folder_snapshot import Selection, Signature, pinned_path, scan
from stoker.agent.checkpoints.format_check import UNKNOWN, CachedFormatChecks, check_format
from stoker.agent.confinement import Confinement, handle_path, open_plain, opened_folder, replace_plain
from stoker.agent.environment.local_cache import LocalCache, create_user_cache
from stoker.agent.environment.uv import write_lines
from stoker.agent.fetch_programs import place_program
from stoker.agent.logs.file_tail import FileTail
from stoker.agent.logs.log_pump import last_lines, say
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync
from stoker.agent.training_environment import ask_to_save, write_notice
from stoker.model import keys
from stoker.model.node_config import NodePaths
from stoker.model.spec import Environment, Spec
from stoker.store.base import FileChanged
from stoker.store.checkpoint_manifests import TRUST_ALL

LIMIT_S = 60.0


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the machine, which the container does not see."""
    write(tmp_path / "etc/shadow", "root:secret")
    return tmp_path / "etc/shadow"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node/code").mkdir(parents=True)
    return tmp_path / "node"


def link(path: Path, target: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_a_link_out_of_the_folder_is_left_out_and_said_once(node: Path, secret: Path) -> None:
    said: list[str] = []
    confinement = Confinement([node], said.append)
    folder = node / "code/checkpoints"
    write(folder / "model.pt", "weights")
    link(folder / "best.pt", "model.pt")
    link(folder / "x", secret)
    link(folder / "sub/y", "../../../../etc/shadow")
    link(folder / "etc", secret.parent)
    for _ in range(3):
        assert sorted(scan(folder, confinement=confinement)) == ["best.pt", "model.pt"]
    (line,) = said
    assert line.startswith("warning: ") and " is left out: it is a link to " in line


def test_a_checkpoint_folder_that_is_a_link_itself_is_not_followed(node: Path, secret: Path) -> None:
    said: list[str] = []
    link(node / "code/checkpoints", secret.parent)
    assert scan(node / "code/checkpoints", confinement=Confinement([node], said.append)) == {}
    assert said and f"checkpoints is left out: it is a link to {secret.parent}" in said[0]


def test_an_absolute_folder_is_an_anchor_itself(tmp_path: Path, node: Path) -> None:
    write(tmp_path / "disk/real/model.pt", "weights")
    link(tmp_path / "data", tmp_path / "disk/real")
    confinement = Confinement([node, tmp_path / "data"], lambda _line: None)
    assert list(scan(tmp_path / "data", confinement=confinement)) == ["model.pt"]


def test_a_folder_that_becomes_a_link_during_the_scan_leads_nowhere(
    node: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node / "code/checkpoints"
    write(folder / "sub/shadow", "own")
    real = os.open

    def swap(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path).endswith("sub"):
            (folder / "sub").rename(folder.parent / "gone")
            (folder / "sub").symlink_to(secret.parent)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert scan(folder, confinement=Confinement([node], lambda _line: None)) == {}


@pytest.mark.parametrize("exact", [True, False])
def test_a_file_that_becomes_a_link_after_the_scan_is_not_read(node: Path, secret: Path, exact: bool) -> None:
    folder = node / "code/checkpoints"
    write(folder / "model.pt", "weights")
    file = scan(folder)["model.pt"]
    with pinned_path(folder / "model.pt", file, exact=exact) as held:
        (folder / "model.pt").unlink()
        (folder / "model.pt").symlink_to(secret)
        assert held.read_text() == "weights"
    with pytest.raises(FileChanged), pinned_path(folder / "model.pt", file, exact=exact):
        pass


def test_no_checkpoint_holds_a_file_of_the_machine(tmp_path: Path, secret: Path) -> None:
    store = memory_store()
    confinement = Confinement([tmp_path / "claim-1-rank-0"], lambda _line: None)
    chosen = Selection(lambda folder: scan(folder, confinement=confinement), confinement=confinement)
    world = World(tmp_path, store, selection=chosen).begin()
    write(world.folder / "model.pt", "weights")
    link(world.folder / "x", secret)
    world.settle()
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"weights"}
    world.save("step-1", {"model": "1"}, step=1)
    link(world.folder / "step-1/y", secret)
    world.settle()
    back = tmp_path / "again"
    restored_content(store, back)
    assert b"root:secret" not in content(back).values()


def kept(files: OutputFiles) -> dict[str, bytes]:
    store = memory_store()
    sync = OutputSync(store, JOB, 1, 0, files)
    assert sync.final(LIMIT_S)
    prefix = keys.outputs(JOB, 1)
    return {one.key.removeprefix(prefix): store.get(one.key).data for one in store.list(prefix)}


def test_no_output_is_a_file_of_the_machine(node: Path, secret: Path) -> None:
    out = node / "code/outputs"
    write(out / "step-2.pt", "weights")
    link(out / "best.pt", "latest.pt")
    link(out / "latest.pt", "step-2.pt")
    link(out / "x", secret)
    # Inside by its text, and outside through another link.
    link(out / "y", "x")
    link(node / "code/beside", secret)
    link(node / "code/folder", secret.parent)
    confinement = Confinement([node], lambda _line: None)
    spec = Spec(name="job", run="python train.py")
    found = kept(job_folders.output_files(NodePaths(node), spec, Baseline(), confinement))
    assert found == dict.fromkeys(("best.pt", "latest.pt", "step-2.pt"), b"weights")


def test_an_output_folder_that_is_a_link_is_not_followed(node: Path, secret: Path) -> None:
    link(node / "code/outputs", secret.parent)
    confinement = Confinement([node], lambda _line: None)
    assert kept(OutputFiles([OutputSource(node / "code/outputs", takes_all=True)], confinement=confinement)) == {}


# ── What the agent writes and reads beside the training ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["notice.json", ".notice.json.tmp", "save", ".save.tmp"])
def test_what_the_training_is_told_is_not_written_through_a_link(node: Path, secret: Path, name: str) -> None:
    channel = node / "channel"
    link(channel / name, secret)
    write_notice(channel / "notice.json", 30.0, 100.0, "notice")
    ask_to_save(channel / "save", 7)
    assert content(secret.parent) == {"shadow": b"root:secret"}
    assert (channel / "save").read_text() == "7" and '"grace_s": 30.0' in (channel / "notice.json").read_text()


def test_requests_behind_a_link_are_neither_read_nor_removed_nor_answered(node: Path, secret: Path) -> None:
    request = '{"sequence": 1, "name": "one", "number": 1}'
    write(secret.parent / "00000001.json", request)
    for number in range(120):
        write(secret.parent / f"{number + 100}.json", "not a request")
    before = content(secret.parent)
    channel, folder = node / "channel", node / "code/checkpoints"
    folder.mkdir()
    for name in ("commits", "commits.done", "commits.next", ".stoker-lock"):
        link(channel / name, secret.parent if "." not in name[1:] or name == "commits.done" else secret)
    queue = CommitQueue(channel, folder, Selection(confinement=Confinement([node], lambda _text: None)))
    assert queue.waiting() == []
    write(node / "elsewhere/commits/00000001.json", request)
    (asked,) = CommitQueue(node / "elsewhere", folder).waiting()
    assert queue.in_folder(asked) is None
    with pytest.raises(NotADirectoryError):
        queue.answer(asked, key="k")
    queue.remove_old_saves(1)
    assert content(secret.parent) == before


def test_no_save_is_removed_behind_a_checkpoint_folder_that_is_a_link(node: Path, secret: Path) -> None:
    for number in range(5):
        write(secret.parent / f"save-{number}/.stoker-checkpoint.json", f'{{"number": {number}}}')
    before = content(secret.parent)
    (node / "channel").mkdir()
    link(node / "code/checkpoints", secret.parent)
    selection = Selection(confinement=Confinement([node], lambda _text: None))
    CommitQueue(node / "channel", node / "code/checkpoints", selection).remove_old_saves(1)
    assert content(secret.parent) == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_in_the_place_of_a_log_is_never_opened(node: Path, secret: Path, kind: str) -> None:
    log = node / "train.log"
    if kind == "link":
        link(log, secret)
    else:
        os.mkfifo(log)
    tail = FileTail(log)
    assert (tail.waiting(), tail.read(100), last_lines(log)) == (0, b"", ())
    tail.forget(1 << 30)
    say(log, "a message")
    assert secret.read_text() == "root:secret"


def test_a_file_that_becomes_a_pipe_between_two_looks_does_not_hold_the_reader_up(node: Path) -> None:
    log = node / "metrics.jsonl"
    write(log, "line")
    tail = FileTail(log)
    waiting = tail.waiting

    def swap() -> int:
        found = waiting()
        log.unlink()
        os.mkfifo(log)
        return found

    tail.waiting = swap  # type: ignore[method-assign]
    with pytest.raises(OSError, match="plain file"):
        tail.read(100)


# ── Handles ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_only_a_plain_file_is_opened_and_nothing_stays_open(node: Path, secret: Path) -> None:
    write(node / "file", "text")
    os.mkfifo(node / "pipe")
    link(node / "link", secret)
    with os.fdopen(open_plain(node / "file", os.O_RDONLY), "rb") as file:
        assert file.read() == b"text"
    before = handles()
    for name, message in (("pipe", "is not a plain file"), ("code", "is not a plain file"), ("link", "symbolic links")):
        with pytest.raises(OSError, match=message):
            open_plain(node / name, os.O_RDONLY)
    with pytest.raises(OSError, match="is not a plain file") as failed:
        open_plain(node / "pipe", os.O_RDONLY)
    assert failed.value.errno == errno.EINVAL and failed.value.filename == str(node / "pipe")
    assert handles() == before


def test_a_small_file_appears_whole_in_the_place_of_anything(node: Path, secret: Path) -> None:
    link(node / "word", secret)
    link(node / ".word.tmp", secret)
    before = handles()
    data = os.urandom(200_000)
    with opened_folder(node) as folder:
        replace_plain(folder, "word", data)
        replace_plain(folder, "private", b"x", 0o600)
        replace_plain(folder, "empty", b"")
    assert (node / "word").read_bytes() == data and not (node / "word").is_symlink()
    assert (node / "private").stat().st_mode & 0o777 == 0o600 and (node / "empty").read_bytes() == b""
    assert sorted(path.name for path in node.iterdir()) == ["code", "empty", "private", "word"]
    assert secret.read_text() == "root:secret" and handles() == before


def test_a_write_that_is_cut_short_is_gone_on_with(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: whole(handle, data[:3]))
    with opened_folder(node) as folder:
        replace_plain(folder, "word", b"0123456789")
    assert (node / "word").read_bytes() == b"0123456789"


def test_a_folder_in_a_folder_is_made_where_it_is_wanted_and_is_no_link(node: Path, secret: Path) -> None:
    before = handles()
    with pytest.raises(FileNotFoundError), opened_folder(node, "inner"):
        pass
    for _ in range(2):
        with opened_folder(node, "inner", make=True) as inner:
            replace_plain(inner, "word", b"x")
    assert (node / "inner/word").read_bytes() == b"x"
    link(node / "outside", secret.parent)
    for make in (False, True):
        with pytest.raises(NotADirectoryError), opened_folder(node, "outside", make=make):
            pass
    assert handles() == before


def test_a_folder_is_reached_from_its_outermost_anchor(node: Path, secret: Path) -> None:
    said: list[str] = []
    confinement = Confinement([node / "code/deep", node], said.append)
    before = handles()
    with pytest.raises(FileNotFoundError):
        confinement.open(node / "code/deep/er")
    for _ in range(2):
        handle = confinement.open(node / "code/deep/er", make=True)
        assert os.path.samestat(os.fstat(handle), (node / "code/deep/er").stat())
        os.close(handle)
    # The inner anchor is no mount of its own: the container may put a link there.
    (node / "code/deep/er").rmdir()
    (node / "code/deep").rmdir()
    link(node / "code/deep", secret.parent)
    with pytest.raises(NotADirectoryError):
        confinement.open(node / "code/deep/er")
    assert said[0].startswith(f"warning: er is left out: it is a link to {secret.parent}, outside the folders")
    write(node / "code/file", "text")
    with pytest.raises(NotADirectoryError):
        confinement.open(node / "code/file")
    assert len(said) == 1 and handles() == before, "a file is no link, and nothing stays open"


# ── Folders that a container writes to before the training ────────────────────────────────────────────────────────────


def test_a_restore_writes_nothing_through_links_in_the_folder(
    node: Path, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node / "code/checkpoints"
    before = content(secret.parent)
    store = memory_store()
    world = World(tmp_path / "before", store).begin()
    world.save("step-1", {"model": "1", "etc/shadow": "2"}, step=1)
    world.tick()
    write(folder / "step-1/kept", "half")
    link(folder / "step-1/etc", secret.parent)
    link(folder / ".tmp-restoring-x", secret.parent)
    link(folder / ".tmp-replaced", secret.parent)
    confinement = Confinement([node], lambda _text: None)
    fetch = restore.fetch_files

    def swap(*arguments: Any, **more: Any) -> None:
        """Put a link in the place of the folder that the files are fetched into."""
        for staging in folder.glob(".tmp-restoring-*"):
            staging.rename(node / "code/moved")
            staging.symlink_to(secret.parent)
        fetch(*arguments, **more)

    monkeypatch.setattr(restore, "fetch_files", swap)
    handle = confinement.open(folder)
    with suppress(OSError):
        restore.restore(store, JOB, 0, manifest_keys(store)[0], handle_path(handle), trust=TRUST_ALL)
    os.close(handle)
    assert content(secret.parent) == before


def test_folders_of_the_training_are_not_made_behind_a_link(node: Path, secret: Path, tmp_path: Path) -> None:
    confinement = Confinement([node, tmp_path / "data"], lambda _text: None)
    link(node / "code/out", secret.parent)
    for folder in (node / "code/out/deep", tmp_path / "data", tmp_path / "data/run"):
        confinement.make(folder)
    assert (tmp_path / "data/run").is_dir() and content(secret.parent) == {"shadow": b"root:secret"}
    assert list(secret.parent.iterdir()) == [secret]


def test_the_tree_of_a_sagemaker_script_is_not_made_behind_links(node: Path, secret: Path, tmp_path: Path) -> None:
    write(tmp_path / "input", "data")
    spec = Spec(name="job", run="python train.py", environment=Environment(contract="sagemaker"))
    sagemaker_scripts.mounts(NodePaths(node), spec)
    for name in ("input/data", "output", "checkpoints", "model"):
        (node / "ml" / name).rename(tmp_path / f"was-{name.replace('/', '-')}")
        link(node / "ml" / name, secret.parent)
    sagemaker_scripts.mounts(NodePaths(node), spec, {"train": str(tmp_path / "input")})
    assert list(secret.parent.iterdir()) == [secret]
    assert (node / "ml/input/data/train/input").is_file()


def test_no_file_of_an_environment_is_written_through_a_link(tmp_path: Path, secret: Path) -> None:
    environments = tmp_path / "environments"
    names = ("key.lock", "key.ready", "key.draft", "pins.txt", "pip")
    for name in names:
        link(environments / name, secret)
    cache = LocalCache(environments)
    (environments / "key").mkdir()
    with pytest.raises(OSError, match="symbolic links"):
        cache.acquire("key", lambda: None, lambda _text: None)
    cache.mark_complete("key")
    write_lines(environments / "pins.txt", ["a==1"])
    place_program(io.BytesIO(b"program"), environments / "pip")
    assert (environments / "pip").stat().st_mode & 0o777 == 0o755
    link(environments / "of-7", secret.parent)
    owner = secret.parent.stat().st_uid
    with pytest.raises(OSError, match="Not a directory"):
        create_user_cache(environments, 7, 7)
    assert secret.parent.stat().st_uid == owner
    assert content(secret.parent) == {"shadow": b"root:secret"}


def test_a_device_in_the_place_of_a_file_is_not_opened(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = os.open

    def note(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        opened.append(flags)
        return real(path, flags, *arguments, **more)

    monkeypatch.setattr(os, "open", note)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(OSError, match="plain file"):
            open_plain("/dev/null", flags)
    assert all(flags & (os.O_PATH | os.O_EXCL) for flags in opened)


def test_an_output_whose_number_went_to_a_pipe_is_not_opened(node: Path) -> None:
    write(node / "code/model.pt", "weights")
    file = scan(node / "code")["model.pt"]
    os.mkfifo(node / "code/pipe")
    status = (node / "code/pipe").stat()
    reused = file._replace(signature=Signature.of(status))
    with pytest.raises(FileChanged), pinned_path(node / "code/pipe", reused, exact=False):
        pass


def test_a_file_that_becomes_a_pipe_does_not_hold_a_format_check_up(node: Path) -> None:
    write(node / "code/state.json", "{}")
    file = scan(node / "code")["state.json"]
    (node / "code/state.json").unlink()
    os.mkfifo(node / "code/state.json")
    assert CachedFormatChecks(node / "code", check_format).check(file) == UNKNOWN
