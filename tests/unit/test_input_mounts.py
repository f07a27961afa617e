"""How each program mounts a bucket: its exact command line. What mounts here for real is in the contract suite."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.agent.inputs import mount
from stoker.agent.inputs.mount import NotMountable, find_tool, mount_command

AT = Path("/node/mounts/data")
OWN_S3 = {"AWS_ENDPOINT_URL": "http://10.0.0.1:9000", "AWS_REGION": "eu-west-1"}
NO_REGION: dict[str, str | None] = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}

_RCLONE = "rclone mount --config= --read-only --vfs-cache-mode=off"
_GCSFUSE = "gcsfuse --foreground --implicit-dirs -o ro"

# The program, the URL, the environment, whether root asks; the command line, and what it finds in its environment.
CASES: list[tuple[str, str, dict[str, str], bool, str, dict[str, str | None]]] = [
    (
        "mount-s3",
        "s3://bucket/train/images/",
        {"AWS_REGION": "eu-west-1"},
        True,
        f"mount-s3 --foreground --read-only --allow-other --prefix=train/images/ bucket {AT}",
        NO_REGION,
    ),
    ("mount-s3", "s3://bucket", {}, False, f"mount-s3 --foreground --read-only bucket {AT}", NO_REGION),
    (
        "mount-s3",
        "s3://bucket",
        OWN_S3,
        False,
        (
            "mount-s3 --foreground --read-only --endpoint-url=http://10.0.0.1:9000 --force-path-style "
            f"--region=eu-west-1 bucket {AT}"
        ),
        NO_REGION,
    ),
    ("gcsfuse", "gs://bucket/train", {}, True, f"{_GCSFUSE} -o allow_other --only-dir=train bucket {AT}", {}),
    (
        "gcsfuse",
        "gs://bucket",
        {"STORAGE_EMULATOR_HOST": "10.0.0.1:4443"},
        False,
        f"{_GCSFUSE} --custom-endpoint=http://10.0.0.1:4443 bucket {AT}",
        {},
    ),
    (
        "rclone",
        "s3://bucket/train",
        {"AWS_REGION": "eu-west-1"},
        True,
        f"{_RCLONE} --allow-other :s3:bucket/train {AT}",
        {"RCLONE_S3_ENV_AUTH": "true", "RCLONE_S3_PROVIDER": "AWS", "RCLONE_S3_REGION": "eu-west-1"},
    ),
    (
        "rclone",
        "s3://bucket",
        OWN_S3 | {"AWS_CA_BUNDLE": "/ca.pem"},
        False,
        f"{_RCLONE} --ca-cert=/ca.pem :s3:bucket {AT}",
        {
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_REGION": "eu-west-1",
            "RCLONE_S3_ENDPOINT": "http://10.0.0.1:9000",
            "AWS_CA_BUNDLE": None,
        },
    ),
    (
        "rclone",
        "gs://bucket/train",
        {},
        False,
        f"{_RCLONE} :gcs:bucket/train {AT}",
        {"RCLONE_GCS_ENV_AUTH": "true", "RCLONE_GCS_BUCKET_POLICY_ONLY": "true"},
    ),
    (
        "s3fs",
        "s3://bucket/train",
        {"AWS_REGION": "eu-west-1"},
        True,
        f"s3fs bucket:/train {AT} -f -o ro,umask=0022,allow_other,endpoint=eu-west-1,iam_role=auto",
        {},
    ),
    (
        "gcsfuse",
        "gs://bucket",
        {"STORAGE_EMULATOR_HOST": "https://10.0.0.1:4443"},
        False,
        f"{_GCSFUSE} --custom-endpoint=https://10.0.0.1:4443 bucket {AT}",
        {},
    ),
    *(
        (
            "rclone",
            "gs://bucket",
            {"STORAGE_EMULATOR_HOST": emulator},
            False,
            f"{_RCLONE} :gcs:bucket {AT}",
            {
                "RCLONE_GCS_ENV_AUTH": "true",
                "RCLONE_GCS_BUCKET_POLICY_ONLY": "true",
                "RCLONE_GCS_ENDPOINT": "http://10.0.0.1:4443",
            },
        )
        for emulator in ("10.0.0.1:4443", "http://10.0.0.1:4443")
    ),
    (
        "rclone",
        "s3://bucket",
        {"AWS_DEFAULT_REGION": "eu-west-2"} | {"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"},
        False,
        f"{_RCLONE} :s3:bucket {AT}",
        {
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_REGION": "eu-west-2",
            "RCLONE_S3_ENDPOINT": "http://s3",
        },
    ),
    (
        "s3fs",
        "s3://bucket",
        {"AWS_PROFILE": "mine"},
        False,
        f"s3fs bucket {AT} -f -o ro,umask=0022,endpoint=us-east-1,profile=mine",
        {},
    ),
    (
        "s3fs",
        "s3://bucket",
        {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_PROFILE": "other"},
        False,
        f"s3fs bucket {AT} -f -o ro,umask=0022,endpoint=us-east-1",
        {},
    ),
    (
        "s3fs",
        "s3://bucket",
        OWN_S3 | {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "hush"},
        False,
        (
            f"s3fs bucket {AT} -f -o "
            "ro,umask=0022,endpoint=eu-west-1,url=http://10.0.0.1:9000,use_path_request_style,use_session_token"
        ),
        {},
    ),
]


@pytest.mark.parametrize(("tool", "url", "environ", "root", "argv", "env"), CASES)
def test_the_command_line(
    tool: str, url: str, environ: dict[str, str], root: bool, argv: str, env: dict[str, str | None]
) -> None:
    command = mount_command(tool, url, AT, environ, root=root)
    assert (" ".join(command.argv), dict(command.env)) == (argv, env)


def have(monkeypatch: pytest.MonkeyPatch, *programs: str, fuse: bool = True) -> None:
    monkeypatch.setattr(mount.shutil, "which", lambda name, path=None: name if name in programs else None)
    monkeypatch.setattr(mount.os, "access", lambda *_: fuse)


def test_the_first_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "s3fs", "rclone", "gcsfuse")
    assert find_tool("s3://bucket") == "rclone" and find_tool("gs://bucket") == "gcsfuse"
    have(monkeypatch, "s3fs", "mount-s3")
    assert find_tool("s3://bucket/x") == "mount-s3"


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "s3fs")
    with pytest.raises(NotMountable, match=r"^this machine has no gcsfuse or rclone; use an image that has one, or "):
        find_tool("gs://bucket")
    have(monkeypatch)
    with pytest.raises(NotMountable, match=r"^this machine has no mount-s3, rclone or s3fs; "):
        find_tool("s3://bucket")
    have(monkeypatch, "s3fs", fuse=False)
    with pytest.raises(NotMountable, match="/dev/fuse"):
        find_tool("s3://bucket")


def test_only_buckets_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "rclone")
    with pytest.raises(NotMountable, match=r"^ftp:// cannot be mounted; s3:// and gs:// can$"):
        find_tool("ftp://host/x")
    with pytest.raises(ValueError, match="tar"):
        mount_command("tar", "s3://bucket", AT, {}, root=False)


# ── Until it is there ─────────────────────────────────────────────────────────────────────────────────────────────────


class Mounts:
    """A machine whose one program for mounts is this script, and what is mounted on it as far as anybody can see."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        self.target, self.log = folder / "mounts" / "data", folder / "log"
        self.unmounted: list[Path] = []
        self.there = lambda: False
        program = folder / "bin" / "rclone"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        monkeypatch.setattr(mount, "find_tool", lambda _url: "rclone")
        monkeypatch.setattr(mount, "unmount_below", self.unmounted.append)
        monkeypatch.setattr(mount, "mounted_below", lambda _target: self.there())
        monkeypatch.setattr(mount, "_POLL_S", 0.001)

    def mount(self, check: Callable[[], None] = lambda: None, region: str | None = None) -> mount.ActiveMount:
        return mount.mount("s3://bucket", self.target, self.log, check, region=region)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_mount_is_there_when_the_machine_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/ca.pem")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    mounts = Mounts(tmp_path, monkeypatch, 'env\necho "argv: $*"\npwd\nexec sleep 1000')
    mounts.there = lambda: "argv: " in mounts.log.read_text() and str(tmp_path) in mounts.log.read_text()
    mounted = mounts.mount(region="eu-north-1")
    assert (mounted.tool, mounted.target) == ("rclone", mounts.target)
    assert mounted.server.poll() is None and mounts.target.is_dir()
    assert mounts.unmounted == [mounts.target], "what an earlier attempt left"
    said = mounts.log.read_text().splitlines()
    assert "RCLONE_S3_REGION=eu-north-1" in said and "AWS_REGION=eu-north-1" in said
    assert not [line for line in said if line.startswith("AWS_CA_BUNDLE=")], "the program fails of it"
    command = mount_command("rclone", "s3://bucket", mounts.target, os.environ, root=os.geteuid() == 0)
    assert f"argv: {' '.join(command.argv[1:])}" in said
    monkeypatch.setattr(mount, "abort_below", mounts.unmounted.append)
    mounted.abort()
    assert mounted.server.wait(60) != 0 and mounts.unmounted == [mounts.target] * 2


def test_a_program_that_ends_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = Mounts(tmp_path, monkeypatch, "echo one; echo; echo two; echo '  three '; echo four >&2; exit 7")
    with pytest.raises(NotMountable, match=r"^rclone ended with 7: two \| three \| four$"):
        mounts.mount()
    assert mounts.unmounted == [mounts.target] * 2


def test_a_program_that_says_nothing_or_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(NotMountable, match=r"^rclone ended with 1$"):
        Mounts(tmp_path / "a", monkeypatch, "exit 1").mount()
    (tmp_path / "b").mkdir()
    with pytest.raises(NotMountable, match=f"^rclone ended with 1: {'x' * 300}$"):
        Mounts(tmp_path / "b", monkeypatch, f"echo {'x' * 1000}; exit 1").mount()


def test_a_program_that_does_not_mount_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = Mounts(tmp_path, monkeypatch, "echo $$; exec sleep 1000")
    clock = [1000.0]

    def check() -> None:
        if mounts.log.read_text().endswith("\n"):
            clock[0] += 30.0

    monkeypatch.setattr(mount, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep))
    with pytest.raises(NotMountable, match=r"^rclone did not mount it within 60 s: [0-9]+$") as failed:
        mounts.mount(check)
    assert clock[0] == 1060.0
    assert is_gone(int(str(failed.value).rpartition(" ")[2]))


def test_a_check_that_raises_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = Mounts(tmp_path, monkeypatch, "echo $$; exec sleep 1000")

    def check() -> None:
        if mounts.log.read_text().endswith("\n"):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        mounts.mount(check)
    assert is_gone(int(mounts.log.read_text())) and mounts.unmounted == [mounts.target] * 2


def test_what_serves_a_mount_ends_with_the_thread_that_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is killed leaves nothing behind; its next one mounts at the same place."""
    mounts = Mounts(tmp_path, monkeypatch, "exec sleep 1000")
    mounts.there = lambda: True
    for _ in range(2):
        served: list[mount.ActiveMount] = []
        thread = threading.Thread(target=lambda: served.append(mounts.mount()))  # noqa: B023
        thread.start()
        thread.join()
        try:
            assert served[0].server.wait(20) != 0
        finally:
            served[0].server.kill()


def test_words_that_are_no_text_are_quoted_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotMountable, match="rclone ended with 1: \N{REPLACEMENT CHARACTER} no"):
        Mounts(tmp_path, monkeypatch, "printf '\\377 no'; exit 1").mount()
