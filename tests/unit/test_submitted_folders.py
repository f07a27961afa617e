"""Folders that a job reads from, keeps and is packed from: looked at on this computer before it is submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities
from stoker.model.spec import Checkpoints, Environment, Input, Spec
from stoker.store.base import Store, open_store
from stoker.submit import system_folders
from stoker.submit.check_inputs import localise_input
from stoker.submit.result_folders import check_result_folders
from stoker.submit.system_folders import check_code_folder, check_input_folder, is_on_kernel_filesystem
from tests.support.sim_data import CAPABILITIES, make_spec

HERE = replace(CAPABILITIES, runs_locally=True)


# ── What is read ──────────────────────────────────────────────────────────────────────────────────────────────────────


def localised(
    source: str, folder: Path, nodes: int = 1, capabilities: Capabilities = CAPABILITIES, **more: object
) -> str:
    spec = make_spec(nodes)
    return localise_input("data", Input(source=source, **more), spec, capabilities, folder).source  # type: ignore[arg-type]


def test_a_path_is_made_absolute_from_the_folder_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a b.csv").write_text("x")
    assert localised("data", tmp_path) == str(tmp_path / "data")
    assert localised(f"file://{tmp_path}/data/a%20b.csv", tmp_path) == str(tmp_path / "data" / "a b.csv")
    assert localised(f"file://localhost{tmp_path}/data", tmp_path) == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("none", "does not exist; name a folder, a file or a URL"),
        ("file.csv/", "is a file; write it without the slash at the end"),
        ("empty", "there is no file in"),
        ("/proc/self", "belongs to the operating system; name a folder of data"),
        ("ftp://host/x", "ftp:// cannot be copied"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, source: str, why: str) -> None:
    (tmp_path / "file.csv").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"inputs\.data: ") as error:
        localised(source, tmp_path)
    assert why in str(error.value)


def test_each_node_needs_a_file_of_its_own_where_they_are_shared_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / name).write_text("x")
    assert localised("data", tmp_path, 2, shard=True)
    assert localised("data", tmp_path, 3), "without `shard` all nodes have all files"
    with pytest.raises(UserError, match=r"inputs.data.shard: 2 files at .* cannot be shared out among 3 nodes"):
        localised("data", tmp_path, 3, shard=True)
    with pytest.raises(UserError, match="1 file at"):
        localised("data/a", tmp_path, 2, shard=True)
    (tmp_path / "data" / "more").symlink_to(tmp_path)
    assert localised("data", tmp_path, 30, shard=True), "behind a link to a folder there may be any number"


def test_files_are_counted_in_all_folders_and_links_to_folders_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep" / "deeper").mkdir(parents=True)
    for name in ("data/1", "data/deep/2", "data/deep/deeper/3"):
        (tmp_path / name).write_text("x")
    assert localised("data", tmp_path, 3, shard=True)
    with pytest.raises(UserError, match=r"3 files at .* among 4 nodes"):
        localised("data", tmp_path, 4, shard=True)
    (tmp_path / "data" / "deep" / "more").symlink_to(tmp_path)
    assert localised("data", tmp_path, 30, shard=True)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "closed").mkdir(parents=True)
    listed = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=rf"^inputs\.data: {tmp_path}/data/closed cannot be read: Permission denied$"):
        localised("data", tmp_path)


def test_a_pipe_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe or a device; name a folder, a file or a URL"):
        localised("pipe", tmp_path)


def test_a_bucket_must_be_one_that_the_machines_have_credentials_for(tmp_path: Path) -> None:
    only = replace(CAPABILITIES, stores=("gs",))
    assert localised("gs://bucket/data", tmp_path, capabilities=only) == "gs://bucket/data"
    assert localised("s3://bucket/data", tmp_path) == "s3://bucket/data", "none named: all"
    with pytest.raises(UserError, match="have credentials for gs://, and none for s3://"):
        localised("s3://bucket/data", tmp_path, capabilities=only)
    assert localised("s3://bucket/data", tmp_path, capabilities=only, mode="stream") == "s3://bucket/data"
    with pytest.raises(UserError, match=r"inputs\.data"):
        localised("s3:///data", tmp_path)


# ── What belongs to the system ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/proc", "/proc/1", "/sys", "/dev", "/dev/null", "/proc/never-there"])
def test_what_the_kernel_makes_up_is_no_data(path: str) -> None:
    assert is_on_kernel_filesystem(Path(path))
    with pytest.raises(UserError, match="belongs to the operating system"):
        check_input_folder("data", Path(path))


def test_files_on_a_disk_are_data(tmp_path: Path) -> None:
    assert not is_on_kernel_filesystem(tmp_path) and not is_on_kernel_filesystem(tmp_path / "never-there")
    assert not is_on_kernel_filesystem(Path("/dev/shm/x")), "memory is a disk like any other"
    check_input_folder("data", tmp_path)


def test_a_link_into_the_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert is_on_kernel_filesystem(tmp_path / "link")


@pytest.mark.parametrize(
    "folder",
    [
        *("/", "/usr", "/etc", "/proc", "/bin", "/boot", "/dev", "/home", "/lib", "/lib64", "/root", "/run", "/sbin"),
        *("/sys", "/usr/bin", "/usr/lib", "/usr/local", "/usr/share", "/var"),
        # Of a Mac.
        *("/Applications", "/Library", "/System", "/Users"),
    ],
)
def test_a_system_folder_is_no_code(folder: str) -> None:
    with pytest.raises(UserError, match=r"code: .*; name the folder that holds the script"):
        check_code_folder(Path(folder))


# As `/proc/self/mountinfo` of a usual machine has them: what the kernel makes up, and where files are.
KERNEL = (
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
    *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs"),
    "tracefs",
)
FILES = ("ext4", "xfs", "btrfs", "overlay", "tmpfs", "nfs4", "fuse.gcsfuse", "9p", "virtiofs")


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """A machine that has one filesystem of each kind mounted: their numbers."""
    numbers = {kind: os.makedev(7, number) for number, kind in enumerate((*KERNEL, *FILES))}
    lines = [
        f"{30 + number} 29 7:{number} / /mnt/{number} rw,nosuid shared:{number} - {kind} {kind} rw"
        for number, kind in enumerate(numbers)
    ]
    read = Path.read_text

    def told(path: Path, *args: Any, **kwargs: Any) -> str:
        if str(path) == "/proc/self/mountinfo":
            return "\n".join(["torn", *lines, "31 29 7:99"])
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", told)
    system_folders._kinds.cache_clear()
    yield numbers
    system_folders._kinds.cache_clear()


def test_kinds_of_filesystems_tell_what_the_kernel_makes_up(mounted: dict[str, int]) -> None:
    assert [kind for kind, number in mounted.items() if system_folders.is_kernel_filesystem(number)] == list(KERNEL)


def test_a_home_is_no_code_and_what_is_in_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="is not a folder of code alone"):
        check_code_folder(tmp_path)
    check_code_folder(tmp_path / "project")


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", none)
    assert system_folders._home() is None


def test_where_the_system_does_not_tell_its_filesystems_none_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise PermissionError("not here")

    monkeypatch.setattr(Path, "read_text", fail)
    system_folders._kinds.cache_clear()
    assert system_folders._kinds() == {}
    system_folders._kinds.cache_clear()


# ── What is kept ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    user = tmp_path / "user"
    (user / "code" / "below").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("STOKER_HOME", str(user / ".stoker"))
    return user


@pytest.fixture
def store(home: Path) -> Store:
    return open_store((home / "a store").as_uri())


def keeping(folder: str, field: str = "checkpoints", nodes: int = 1) -> Spec:
    spec = make_spec(nodes)
    if field == "outputs":
        return replace(spec, outputs=(folder,))
    return replace(spec, checkpoints=Checkpoints(dir=folder))


@pytest.mark.parametrize("field", ["checkpoints", "outputs"])
def test_a_folder_of_the_jobs_own_is_taken(home: Path, store: Store, field: str) -> None:
    for folder in (str(home / "saves"), "saves", "."):
        check_result_folders(keeping(folder, field), HERE, home / "code", store)
    (home / "saves").mkdir()
    check_result_folders(keeping(str(home / "saves"), field), HERE, home / "code", store)
    check_result_folders(keeping(str(home / "code" / "saves"), field), HERE, home / "code", store)


@pytest.mark.parametrize("field", ["checkpoints", "outputs"])
@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("{home}/file", "is a file; name a folder"),
        ("/etc", "/etc"),
        ("{home}", "holds your home"),
        ("{home}/..", "holds your home"),
        ("{home}/.stoker", "where Stoker keeps its own files"),
        ("{home}/.stoker/below", "where Stoker keeps its own files"),
        ("{home}/a store", "where Stoker keeps its own files"),
        ("{home}/a store/below", "where Stoker keeps its own files"),
        ("{home}/code", "holds the code"),
        ("{home}/link", "holds the code"),
    ],
)
def test_a_folder_that_holds_more_than_the_jobs_own_files_is_refused(
    home: Path, store: Store, field: str, folder: str, why: str
) -> None:
    (home / "file").write_text("x")
    (home / "link").symlink_to(home / "code")
    named = folder.format(home=home)
    with pytest.raises(UserError) as error:
        check_result_folders(keeping(named, field), HERE, home / "code", store)
    assert why in str(error.value)
    assert str(error.value).startswith("outputs: " if field == "outputs" else "checkpoints.dir: ")


def test_several_nodes_on_this_computer_do_not_share_a_folder(home: Path, store: Store) -> None:
    with pytest.raises(UserError, match="2 nodes on this computer would all write there"):
        check_result_folders(keeping(str(home / "saves"), nodes=2), HERE, None, store)
    check_result_folders(keeping("saves", nodes=2), HERE, None, store)


def test_machines_elsewhere_have_folders_of_their_own(home: Path, store: Store) -> None:
    check_result_folders(keeping(str(home)), CAPABILITIES, home / "code", store)
    estimator = replace(keeping(str(home)), environment=Environment(contract="sagemaker"))
    check_result_folders(estimator, HERE, home / "code", store)


def test_without_code_of_its_own_any_folder_may_hold_code(home: Path, store: Store) -> None:
    check_result_folders(keeping(str(home / "code")), HERE, None, store)
