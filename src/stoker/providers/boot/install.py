"""Make a plain machine a node: its first boot runs this once. A `BootCloud` holds the differences between clouds.

    python boot.pyz BOOT_JSON PYTHON TAG      install the agent of that tag under PYTHON and start it
    python boot.pyz BOOT_JSON --failed WHY    only report that the boot failed
    python boot.pyz BOOT_JSON --leave         give the machine back, if switching it off is not enough

The machine learns its identity from the metadata service, fetches the agent that its script names by digest, and starts
it under systemd. Nothing here depends on a tag of the machine. A failure is one line on the console, and the whole
output in the bucket; the script then gives the machine back.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.providers.boot.install_paths import InstallPaths
from stoker.providers.boot.retry import BootFailed, RetryableFailure, limit_retries, retry

_DIGEST_S = 15.0
_REPORT_S = 60.0
# Together with the request that may be in flight then, well below the time that systemd gives a service to stop.
_LEAVE_S = 30.0
_CHECK_S = 60.0
# The exit status of `--leave` if the cloud refused; any other failure is one of this Python.
LEAVE_REFUSED = 3
# The exit status of `stoker.providers.boot.start` if its last line says what the user can do.
NOT_STARTED = 3
_MOST_OUTPUT = 1 << 17


class BootCloud:
    """This machine and its bucket. Each cloud's `bootstrap` makes its own from `boot.json`."""

    # The identity of this machine. `rank` is its position among the nodes of its claim.
    instance = ""
    rank = 0
    zone = ""

    def get(self, key: str, target: Path) -> str:
        """Fetch an object into a file. Returns its SHA-256. Raises RetryableFailure."""
        raise NotImplementedError

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises RetryableFailure."""
        raise NotImplementedError

    def environ(self) -> "dict[str, str]":
        """The variables with which the agent finds its cloud."""
        raise NotImplementedError

    def leave(self) -> None:
        """Give the machine back, if switching it off is not enough. Raises RetryableFailure."""


def say(text: str) -> None:
    """Print a line to the console, which the boot script also copies to a file."""
    print("stoker: " + text, flush=True)


def fetch(cloud: BootCloud, key: str, digest: str, target: Path) -> None:
    """Fetch the agent's archive and verify its digest. Raises BootFailed."""

    def attempt() -> None:
        found = cloud.get(key, target)
        if found != digest:
            raise RetryableFailure(
                f"{key} is not what was submitted (its digest is {found}) — submit the job again", _DIGEST_S
            )

    retry(attempt)


def unpack(archive: Path, target: Path) -> None:
    """Unpack the archive to `target`, which appears complete or not at all.

    Raises BootFailed if the archive holds anything but plain files below it.
    """
    draft = target.with_name(target.name + ".tmp")
    for before in (draft, target):
        shutil.rmtree(str(before), ignore_errors=True)
    with tarfile.open(str(archive)) as tar:
        for member in tar:
            parts = member.name.split("/")
            if not member.isfile() or member.name.startswith("/") or any(part in ("", ".", "..") for part in parts):
                raise BootFailed(f"the agent's archive holds {member.name!r} — submit the job again")
            content = tar.extractfile(member)
            file = draft.joinpath(*parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            assert content is not None
            file.write_bytes(content.read())
            file.chmod(0o755 if member.mode & 0o100 else 0o644)
    draft.rename(target)


def check_agent(python: str, agent: Path) -> None:
    """Raise BootFailed if this Python cannot import the agent, for example because of another libc or processor."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import stoker.agent.main, obstore"
    try:
        subprocess.run(
            [python, "-c", code, str(agent)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=_CHECK_S,
        )
    except subprocess.CalledProcessError as error:
        text = error.output.decode(errors="replace").strip()
        print(text, flush=True)
        last = text.splitlines()[-1] if text else f"exit status {error.returncode}"
        raise BootFailed(f"the agent does not run under {python}: {last} — choose another resources.image") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BootFailed(f"the agent does not run under {python}: {error} — choose another resources.image") from None


def start(python: str, agent: Path, order: "dict[str, Any]") -> None:
    """Start the agent with a program of its own archive, `stoker.providers.boot.start`. Raises BootFailed."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from stoker.providers.boot.start import main; main()"
    last = ""
    with subprocess.Popen(
        [python, "-c", code, str(agent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        try:
            program.stdin.write(json.dumps(dict(order, python=python)))
            program.stdin.close()
        except BrokenPipeError:
            pass  # It failed before it read anything; its output says why.
        for line in program.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    if program.returncode == NOT_STARTED:
        raise BootFailed(last)
    if program.returncode:
        raise BootFailed(_fault(last or f"exit status {program.returncode}"))


def install(config: "dict[str, Any]", python: str, install_paths: InstallPaths, cloud: BootCloud) -> None:
    """Turn a bare machine into a node with a running agent. Raises BootFailed."""
    say(f"{cloud.instance} in {cloud.zone} is rank {cloud.rank} of {config['node']['job']}")
    if cloud.rank >= config["node"]["nodes"]:
        raise BootFailed(f"rank {cloud.rank} is one too many — the request was changed; launch it again")
    name = config["bundles"][config["tag"]]
    install_paths.home.mkdir(parents=True, exist_ok=True)
    archive = install_paths.home / "agent.tar.gz"
    # A bundle's name is its digest, followed by a generation unless that is the first.
    fetch(cloud, config["bundle_key"].replace("{name}", name), name.partition("-")[0], archive)
    unpack(archive, install_paths.agent)
    archive.unlink()
    check_agent(python, install_paths.agent)
    identity = {"rank": cloud.rank, "instance": cloud.instance}
    start(python, install_paths.agent, {"config": config, "environ": cloud.environ(), "identity": identity})
    say("the agent is started")


def _fault(error: str) -> str:
    return f"{error} — this is a fault in Stoker or a broken image; the lines above say where"


def report(
    config: "dict[str, Any]", failure: str, output: Path, connect: "Callable[[dict[str, Any]], BootCloud]"
) -> None:
    """Print the failure to the console, and upload the whole output. Never raises: no caller could handle an error."""
    line = f"boot failed: {failure}"
    say(line)
    limit_retries(_REPORT_S)
    try:
        cloud = connect(config)
        key = config["output_key"].replace("{rank}", str(cloud.rank)).replace("{instance}", cloud.instance)
        data = _read_output(output, line)
        retry(lambda: cloud.put(key, data))
    except Exception as error:  # noqa: BLE001 - the last action on this machine
        say(f"nor can this be brought to the bucket: {error}")


def _read_output(path: Path, line: str) -> bytes:
    """Read everything printed so far, up to this line. `tee` writes the file, and may be a little behind."""
    until = time.monotonic() + 2.0
    while True:
        data = path.read_bytes() if path.exists() else b""
        if line.encode() in data:
            return data[-_MOST_OUTPUT:]
        if time.monotonic() >= until:
            return data[-_MOST_OUTPUT:] + f"stoker: {line}\n".encode()
        time.sleep(0.02)


def leave(config: "dict[str, Any]", connect: "Callable[[dict[str, Any]], BootCloud]") -> int:
    """Give the machine back and return the exit status.

    The script switches the machine off in any case. After `LEAVE_REFUSED` it tries no other Python first.
    """
    limit_retries(_LEAVE_S)
    try:
        cloud = connect(config)
        retry(cloud.leave)
        return 0
    except Exception as error:  # noqa: BLE001 - the last action on this machine
        say(f"the machine cannot give itself back: {error}")
        return LEAVE_REFUSED


def main(argv: "list[str]", connect: "Callable[[dict[str, Any]], BootCloud]") -> int:
    """Run the command line. `connect` makes this machine's `BootCloud`, and raises BootFailed if it cannot."""
    install_paths = InstallPaths()
    config = json.loads(Path(argv[0]).read_text())
    if argv[1] == "--leave":
        return leave(config, connect)
    try:
        if argv[1] == "--failed":
            # In the C locale an old Python splits non-ASCII characters into surrogates.
            raise BootFailed(os.fsencode(argv[2]).decode("utf-8", "replace"))
        config["tag"] = argv[2]
        install(config, argv[1], install_paths, connect(config))
        return 0
    except BootFailed as failure:
        report(config, str(failure), install_paths.output, connect)
    except Exception as error:  # noqa: BLE001 - every failure must reach the console and the bucket
        import traceback

        traceback.print_exc(file=sys.stdout)
        report(config, _fault(repr(error)), install_paths.output, connect)
    return 1
