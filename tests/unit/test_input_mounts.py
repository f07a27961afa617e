"""How each program mounts a bucket: its exact command line. What mounts here for real is in the contract suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.inputs import mounting
from stoker.agent.inputs.mounting import NotMountable, find_tool, mount_command

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
    monkeypatch.setattr(mounting.shutil, "which", lambda name, path=None: name if name in programs else None)
    monkeypatch.setattr(mounting.os, "access", lambda *_: fuse)


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
