"""`mode: mount`: mount a bucket as a read-only folder, with a FUSE program that the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.processes.spawn import LaunchSpec, start
from stoker.processes.unmounting import abort_below, mounted_below, unmount_below

# In order of preference.
TOOLS = {"s3": ("mount-s3", "rclone", "s3fs"), "gs": ("gcsfuse", "rclone")}
_LIMIT_S = 60.0
_POLL_S = 0.05
_QUOTED_CHARACTERS = 300


class NotMountable(Exception):
    """The URL could not be mounted; the message says why, and what would help."""


@dataclass(frozen=True)
class MountCommand:
    """A command to run in the foreground, and changes of its environment: None removes a variable."""

    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ActiveMount:
    """A mounted folder, and the process that serves it."""

    tool: str
    target: Path
    server: subprocess.Popen[bytes]

    def abort(self) -> None:
        """Abort the mount, so that all accesses to it fail: processes that wait for a dead mount cannot be killed.

        The mount point stays, but is unusable. Repeating is harmless.
        """
        abort_below(self.target)
        self.server.kill()


def mount_command(tool: str, url: str, target: Path, environ: Mapping[str, str], *, root: bool) -> MountCommand:
    """Return the command with which `tool` mounts the folder `url` at `target`; with `root`, for all users. Pure.

    The tool finds its credentials where every program of that cloud does: they are not passed here.
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
    # It detects the bucket's region unless one is set.
    return MountCommand((*argv, bucket, str(target)), {"AWS_REGION": None, "AWS_DEFAULT_REGION": None})


def _gcsfuse(bucket: str, prefix: str, target: Path, environ: Mapping[str, str], root: bool) -> MountCommand:
    """https://cloud.google.com/storage/docs/cloud-storage-fuse/cli-options"""
    # Without this option, only folders with an object of their own would be visible.
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

    The user's own remotes are left alone: no configuration is read or written.
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
            # rclone's S3 library cannot use this variable, and fails because of it.
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
    """Return the program that mounts such a URL on this machine. Raises NotMountable."""
    scheme = url.partition("://")[0]
    tools = TOOLS.get(scheme)
    if tools is None:
        raise NotMountable(f"{scheme}:// cannot be mounted; s3:// and gs:// can")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NotMountable("this machine has no usable /dev/fuse; leave out `mode: mount`")
    found = next((tool for tool in tools if shutil.which(tool, path=path)), None)
    if found is None:
        wanted = f"{', '.join(tools[:-1])} or {tools[-1]}"
        raise NotMountable(f"this machine has no {wanted}; use an image that has one, or leave out `mode: mount`")
    return found


def mount(url: str, target: Path, log: Path, check: Callable[[], None], *, region: str | None = None) -> ActiveMount:
    """Mount the folder `url` at `target`, and wait until it is mounted.

    The server process ends with the calling thread; `unmount_below` removes the mount. The server's output is in `log`.
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
            LaunchSpec(
                command.argv, env, stdout=output, stderr=subprocess.STDOUT, dies_with_parent=True, cwd=log.parent
            )
        )
    deadline_s = time.monotonic() + _LIMIT_S
    try:
        while not mounted_below(target):
            if server.poll() is not None:
                raise NotMountable(f"{tool} ended with {server.returncode}{_output_tail(log)}")
            if time.monotonic() >= deadline_s:
                raise NotMountable(f"{tool} did not mount it within {_LIMIT_S:g} s{_output_tail(log)}")
            check()
            time.sleep(_POLL_S)
    except BaseException:  # an abort, too, must not leave a mount behind; raised again
        unmount_below(target)
        server.kill()
        server.wait()
        raise
    return ActiveMount(tool, target, server)


def _output_tail(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {' | '.join(lines[-3:])[-_QUOTED_CHARACTERS:]}" if lines else ""
