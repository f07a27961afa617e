"""`mode: mount`: a bucket seen as a folder, through whichever program for that the machine has. Only to be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.processes.spawn import Launch, start
from stoker.processes.unmounting import abort_below, mounted_below, unmount_below

# Of those that a machine has, the first.
TOOLS = {"s3": ("mount-s3", "rclone", "s3fs"), "gs": ("gcsfuse", "rclone")}
_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.05
_QUOTED_CHARACTERS = 300


class NotMountable(Exception):
    """It could not be mounted; the message says why, and what would help."""


@dataclass(frozen=True)
class MountCommand:
    """What to run, in the foreground, and what it finds in its environment: None takes a variable away."""

    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Mounted:
    """A folder that is mounted, and the process that serves it."""

    tool: str
    target: Path
    server: subprocess.Popen[bytes]

    def cut(self) -> None:
        """Have everybody fail who waits for it: one that does not answer keeps them from dying. Repeating is harmless.

        The mount stays, and is good for nothing.
        """
        abort_below(self.target)
        self.server.kill()


def mount_command(tool: str, url: str, target: Path, environ: Mapping[str, str], *, root: bool) -> MountCommand:
    """How `tool` shows the folder `url` at `target`, to everybody where `root` asks. Pure.

    Credentials are the tool's own to find, where every program of that cloud finds them: nothing of them is here.
    """
    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.strip("/").partition("/")
    match tool:
        case "mount-s3":
            return _mountpoint(bucket, prefix, target, environ, root)
        case "gcsfuse":
            return _gcsfuse(bucket, prefix, target, environ, root)
        case "rclone":
            return _rclone(scheme, bucket, prefix, target, environ, root)
        case "s3fs":
            return _s3fs(bucket, prefix, target, environ, root)
        case _:
            raise ValueError(tool)


def _mountpoint(bucket: str, prefix: str, target: Path, environ: Mapping[str, str], root: bool) -> MountCommand:
    """https://github.com/awslabs/mountpoint-s3/blob/main/doc/CONFIGURATION.md"""
    argv = ["mount-s3", "--foreground", "--read-only"]
    if root:
        argv.append("--allow-other")
    if prefix:
        argv.append(f"--prefix={prefix}/")
    endpoint = _s3_endpoint(environ)
    if endpoint is not None:
        argv += [f"--endpoint-url={endpoint}", "--force-path-style", f"--region={_s3_region(environ)}"]
    # It finds out where the bucket is, unless it is told.
    return MountCommand((*argv, bucket, str(target)), {"AWS_REGION": None, "AWS_DEFAULT_REGION": None})


def _gcsfuse(bucket: str, prefix: str, target: Path, environ: Mapping[str, str], root: bool) -> MountCommand:
    """https://cloud.google.com/storage/docs/cloud-storage-fuse/cli-options"""
    # Without the implicit ones, only folders that somebody made an object for would be seen.
    argv = ["gcsfuse", "--foreground", "--implicit-dirs", "-o", "ro"]
    if root:
        argv += ["-o", "allow_other"]
    if prefix:
        argv.append(f"--only-dir={prefix}")
    if emulator := environ.get("STORAGE_EMULATOR_HOST"):
        argv.append(f"--custom-endpoint={emulator if '://' in emulator else f'http://{emulator}'}")
    return MountCommand((*argv, bucket, str(target)))


def _rclone(
    scheme: str, bucket: str, prefix: str, target: Path, environ: Mapping[str, str], root: bool
) -> MountCommand:
    """https://rclone.org/commands/rclone_mount/ and https://rclone.org/docs/#environment-variables

    The person's own remotes are left alone: no configuration is read or written.
    """
    argv = ["rclone", "mount", "--config=", "--read-only", "--vfs-cache-mode=off"]
    if root:
        argv.append("--allow-other")
    env: dict[str, str | None] = {}
    if scheme == "s3":
        endpoint = _s3_endpoint(environ)
        env |= {"RCLONE_S3_ENV_AUTH": "true", "RCLONE_S3_PROVIDER": "Other" if endpoint else "AWS"}
        env |= {"RCLONE_S3_REGION": _s3_region(environ)} | ({"RCLONE_S3_ENDPOINT": endpoint} if endpoint else {})
        if bundle := environ.get("AWS_CA_BUNDLE"):
            # The library that it speaks to S3 with cannot use the variable, and fails of it.
            argv.append(f"--ca-cert={bundle}")
            env["AWS_CA_BUNDLE"] = None
    else:
        env |= {"RCLONE_GCS_ENV_AUTH": "true", "RCLONE_GCS_BUCKET_POLICY_ONLY": "true"}
        if emulator := environ.get("STORAGE_EMULATOR_HOST"):
            env["RCLONE_GCS_ENDPOINT"] = emulator if "://" in emulator else f"http://{emulator}"
    remote = "s3" if scheme == "s3" else "gcs"
    return MountCommand((*argv, f":{remote}:{bucket}/{prefix}".rstrip("/"), str(target)), env)


def _s3fs(bucket: str, prefix: str, target: Path, environ: Mapping[str, str], root: bool) -> MountCommand:
    """https://github.com/s3fs-fuse/s3fs-fuse, `man s3fs`"""
    options = ["ro", "umask=0022", *(["allow_other"] if root else []), f"endpoint={_s3_region(environ)}"]
    endpoint = _s3_endpoint(environ)
    options += [f"url={endpoint}", "use_path_request_style"] if endpoint else []
    if environ.get("AWS_ACCESS_KEY_ID"):
        options += ["use_session_token"] if environ.get("AWS_SESSION_TOKEN") else []
    elif environ.get("AWS_PROFILE"):
        options.append(f"profile={environ['AWS_PROFILE']}")
    else:
        options.append("iam_role=auto")
    place = f"{bucket}:/{prefix}" if prefix else bucket
    return MountCommand(("s3fs", place, str(target), "-f", "-o", ",".join(options)))


def _s3_endpoint(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None


def _s3_region(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def find_tool(url: str, *, path: str | None = None) -> str:
    """The program that mounts such a URL here. Raises NotMountable."""
    scheme = url.partition("://")[0]
    tools = TOOLS.get(scheme)
    if tools is None:
        raise NotMountable(f"{scheme}:// cannot be mounted; s3:// and gs:// can")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NotMountable("this machine has no /dev/fuse that may be used; leave out `mode: mount`")
    found = next((tool for tool in tools if shutil.which(tool, path=path)), None)
    if found is None:
        wanted = f"{', '.join(tools[:-1])} or {tools[-1]}"
        raise NotMountable(f"this machine has no {wanted}; use an image that has one, or leave out `mode: mount`")
    return found


def mount(url: str, target: Path, log: Path, check: Callable[[], None], *, region: str | None = None) -> Mounted:
    """Mount the folder `url` at `target`, and wait until it is there.

    Who serves it ends with the thread that calls this; `unmount_below` takes the mount away. What it says is in `log`.
    Raises NotMountable, and whatever `check` raises, with nothing left mounted.
    """
    tool = find_tool(url)
    unmount_below(target)
    target.mkdir(parents=True, exist_ok=True)
    environ = os.environ | ({"AWS_REGION": region} if region else {})
    command = mount_command(tool, url, target, environ, root=os.geteuid() == 0)
    env = {name: value for name, value in environ.items() if command.env.get(name, "") is not None}
    env |= {name: value for name, value in command.env.items() if value is not None}
    with log.open("wb") as output:
        server = start(
            Launch(command.argv, env, stdout=output, stderr=subprocess.STDOUT, dies_with_parent=True, cwd=log.parent)
        )
    deadline_s = time.monotonic() + _LIMIT_S
    try:
        while not mounted_below(target):
            if server.poll() is not None:
                raise NotMountable(f"{tool} ended with {server.returncode}{_last_words(log)}")
            if time.monotonic() >= deadline_s:
                raise NotMountable(f"{tool} did not mount it within {_LIMIT_S:g} s{_last_words(log)}")
            check()
            time.sleep(_LOOK_EVERY_S)
    except BaseException:
        unmount_below(target)
        server.kill()
        server.wait()
        raise
    return Mounted(tool, target, server)


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {' | '.join(lines[-3:])[-_QUOTED_CHARACTERS:]}" if lines else ""
