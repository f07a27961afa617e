"""Links that lead out of somebody's data: what they lead to is seen in a container, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.container import symlinks
from stoker.agent.container.create_command import ContainerPlan, mount_targets
from stoker.agent.container.symlinks import LinkTargets
from stoker.agent.runtime import BindMount
from stoker.model.errors import SetupFailed


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with others beside it."""
    for name in ("data", "elsewhere/deep", "third"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("data/own", "elsewhere/deep/file", "third/file"):
        (tmp_path / name).write_text(name)
    return tmp_path / "data"


def follow(data: Path, *seen: Path) -> dict[str, str]:
    leads = LinkTargets([str(data), *map(str, seen)])
    leads.follow(data)
    assert leads.complete and all(mount.read_only for mount in leads.mounts)
    above = f"{data.parent}/"
    return {mount.target.removeprefix(above): str(mount.source).removeprefix(above) for mount in leads.mounts}


def test_what_they_lead_to_is_seen_under_the_name_that_they_have_for_it(data: Path) -> None:
    (data / "train").symlink_to(data.parent / "elsewhere")
    (data / "sub").mkdir()
    (data / "sub" / "file").symlink_to("../../third/file")
    (data / "inner").symlink_to("own")
    assert follow(data) == {"elsewhere": "elsewhere", "third/file": "third/file"}


def test_links_in_what_links_lead_to(data: Path) -> None:
    (data.parent / "current").symlink_to("elsewhere")
    (data / "train").symlink_to(data.parent / "current" / "deep")
    (data.parent / "elsewhere" / "deep" / "more").symlink_to(data.parent / "third")
    assert follow(data) == {"current/deep": "elsewhere/deep", "third": "third"}


def test_of_two_one_may_lie_in_the_other(data: Path) -> None:
    (data / "a").symlink_to(data.parent / "elsewhere" / "deep")
    (data / "b").symlink_to(data.parent / "elsewhere")
    assert follow(data) == {"elsewhere": "elsewhere"}


def test_what_is_seen_already_is_not_seen_twice(data: Path) -> None:
    (data / "train").symlink_to(data.parent / "elsewhere" / "deep")
    assert follow(data, data.parent / "elsewhere") == {}


@pytest.mark.parametrize("target", ["/usr/bin/env", "/etc", "/", "/opt", "/no/such/place", "loop", "/proc/self/exe"])
def test_the_image_keeps_its_own_and_what_leads_nowhere_leads_nowhere(data: Path, target: str) -> None:
    (data / "loop").symlink_to(target)
    assert follow(data) == {}


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        *((f"/{name}/x", False) for name in ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc")),
        *((f"/{name}/x", False) for name in ("run", "sbin", "sys", "usr")),
        *((name, False) for name in ("/", "/home", "/opt", "/root", "/tmp", "/var")),
        *((name, True) for name in ("/home/x", "/opt/x", "/root/x", "/tmp/x", "/var/x", "/mnt", "/mnt/x", "/binary")),
    ],
)
def test_folders_of_the_system_are_the_images_and_all_others_are_seen(
    data: Path, monkeypatch: pytest.MonkeyPatch, target: str, seen: bool
) -> None:
    (data / "link").symlink_to(target)
    # All of them are there.
    monkeypatch.setattr(Path, "resolve", lambda path, strict: Path("/resolved", *path.readlink().parts[1:]))
    assert follow(data) == ({target: f"/resolved{target}"} if seen else {})


def test_folders_that_lead_to_each_other_have_an_end(data: Path) -> None:
    (data / "out").symlink_to(data.parent / "elsewhere")
    (data.parent / "elsewhere" / "back").symlink_to(data)
    (data.parent / "elsewhere" / "itself").symlink_to(".")
    assert follow(data) == {"elsewhere": "elsewhere"}


def test_too_many_are_named_and_not_mounted(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symlinks, "MAX_TARGETS", 2)
    for number in range(3):
        (data.parent / f"x{number}").touch()
        (data / f"l{number}").symlink_to(data.parent / f"x{number}")
    with pytest.raises(
        SetupFailed, match=r"more than 2 links lead out of .*/data, such as .*/data/l\d to .*volumes"
    ) as e:
        follow(data)
    assert e.value.user and "\n" not in str(e.value)


def test_no_more_is_looked_at_than_is_worth_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symlinks, "MAX_SCANNED", 3)
    for number in range(4):
        (data / str(number)).touch()
    leads = LinkTargets([str(data)])
    leads.follow(data)
    assert not leads.complete


def test_an_input_that_is_one_file(data: Path) -> None:
    assert follow(data / "own") == {}


def test_what_the_person_mounts_is_seen() -> None:
    plan = ContainerPlan(
        engine="docker",
        name="x",
        image="x",
        pipes=Path("/n/pipes"),
        folders=(Path("/n"),),
        read=(Path("/data"),),
        mounts=(BindMount(Path("/n/ml"), "/opt/ml"),),
        run={
            "volumes": ["/a:/in/a:ro", "/cache"],
            "mounts": [{"type": "bind", "source": "/b", "dst": "/in/b"}],
            "tmpfs": {"/scratch": "size=1g"},
        },
    )
    assert mount_targets(plan) == ["/n", "/data", "/opt/ml", "/in/a", "/cache", "/in/b", "/scratch"]
