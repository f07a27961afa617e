"""Make a plain machine a node: what its first boot runs there, once. What differs from cloud to cloud is a `Cloud`.

    python boot.pyz BOOT_JSON PYTHON TAG      install the agent of that tag under PYTHON and start it
    python boot.pyz BOOT_JSON --failed WHAT   only report that the boot failed
    python boot.pyz BOOT_JSON --leave         give the machine back, where switching it off does not

It learns from the metadata service who it is, fetches the agent that its script names by digest, and starts it under
systemd. Nothing here depends on a tag. What goes wrong is one line on the console, and the whole output in the bucket;
the script then gives the machine back.
"""

import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

# How long each thing may take to come right. The machine's identity and the rules of a bucket reach a new machine late;
# networks, later.
ANSWER_S = 240.0
ROLE_S = 90.0
DENIED_S = 45.0
ABSENT_S = 5.0
_DIGEST_S = 15.0
_REPORT_S = 60.0
# With the answer that is waited for then, well within what systemd waits for a service to stop.
_LEAVE_S = 30.0
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_S = 20.0
_LOGIN_S = 5.0
_CHECK_S = 60.0
_HUNG_S = 600
_CHUNK = 1 << 20
# The exit status of `--leave` where the cloud was asked in vain; any other failure is this Python's.
KEPT = 3
_MOST_OUTPUT = 1 << 17

# Where images keep the Python that people mean when they say `python`.
_FIRST_ON_PATH = ("/opt/pytorch/bin", "/opt/conda/bin")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BootFailed(Exception):
    """What is wrong, and what to do about it."""


class Unsettled(Exception):
    """It may come right by itself within `patience_s`; if it does not, `failure` is what to say."""

    def __init__(self, failure: str, patience_s: float) -> None:
        super().__init__(failure)
        self.failure = failure
        self.patience_s = patience_s


class Cloud:
    """This machine and its bucket, as its cloud has them. Made by a cloud's own `bootstrap`, from `boot.json`."""

    # Who this machine is. `rank` is its place among the nodes of its claim.
    instance = ""
    rank = 0
    zone = ""

    def get(self, key: str, target: Path) -> str:
        """Fetch an object into a file. Answers its SHA-256. Raises Unsettled."""
        raise NotImplementedError

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises Unsettled."""
        raise NotImplementedError

    def environ(self) -> "dict[str, str]":
        """What the agent needs to find its cloud."""
        raise NotImplementedError

    def leave(self) -> None:
        """Give the machine back, where switching it off does not. Raises Unsettled."""


def say(text: str) -> None:
    """A line for the console, and for the file that the user-data keeps of it."""
    print("stoker: " + text, flush=True)


def patiently(attempt: "Callable[[], T]") -> T:
    """Try until it works. Raises BootFailed when what stood in the way stayed there."""
    began = time.monotonic()
    most_s = float(os.environ.get("STOKER_BOOT_PATIENCE_S") or ANSWER_S)
    pause_s = 0.1
    while True:
        try:
            return attempt()
        except Unsettled as problem:
            left_s = began + min(problem.patience_s, most_s) - time.monotonic()
            if left_s <= 0:
                raise BootFailed(problem.failure) from None
        time.sleep(min(pause_s, left_s))
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


# ── Asking over HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────


def exchange(
    method: str,
    url: str,
    headers: "Mapping[str, str]",
    data: bytes,
    take: "Callable[[http.client.HTTPResponse], object]",
    refused: "Callable[[http.client.HTTPResponse], object]",
    remedy: str,
) -> None:
    """One request; `take` gets an answer that is a yes, `refused` any other. Raises Unsettled where there is none."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_TIMEOUT_S)
    path = parts.path + ("?" + parts.query if parts.query else "")
    try:
        connection.request(method, path, body=data or None, headers=dict(headers))
        answer = connection.getresponse()
        if 200 <= answer.status < 300:
            take(answer)
        else:
            refused(answer)
    except ssl.SSLError as error:
        raise Unsettled(f"{parts.netloc} cannot be trusted: {error} — the image needs CA certificates", 30.0) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unsettled(f"{parts.netloc} does not answer: {error!r} — {remedy}", ANSWER_S) from None
    finally:
        connection.close()


def save(answer: http.client.HTTPResponse, target: Path) -> str:
    """An answer's bytes as a file. Answers their SHA-256."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for chunk in iter(lambda: answer.read(_CHUNK), b""):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


# ── The agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Places:
    """Where things go on the machine. STOKER_BOOT_ROOT puts all of them below another folder, for tests."""

    def __init__(self) -> None:
        root = Path(os.environ.get("STOKER_BOOT_ROOT") or "/")
        self.home = root / "opt/stoker"
        self.leave = self.home / "boot/leave"
        self.agent = self.home / "agent"
        self.programs = self.home / "bin"
        self.node = root / "var/lib/stoker/node"
        self.units = root / "etc/systemd/system"
        self.output = root / "var/log/stoker-boot.log"


def fetch(cloud: Cloud, key: str, digest: str, target: Path) -> None:
    """The agent's archive, verified. Raises BootFailed."""

    def attempt() -> None:
        found = cloud.get(key, target)
        if found != digest:
            raise Unsettled(
                f"{key} is not what was submitted (its digest is {found}) — submit the job again", _DIGEST_S
            )

    patiently(attempt)


def unpack(archive: Path, target: Path) -> None:
    """Plain files below `target`, which appears as a whole. Raises BootFailed for anything else in the archive."""
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
    """Whether this Python can run it: another libc or processor shows here. Raises BootFailed."""
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


def agent_environ(config: "dict[str, Any]", cloud: Cloud, places: Places) -> "dict[str, str]":
    """The agent's environment, which the training inherits: the image's own programs come first."""
    path, libraries = _login_paths()
    folders = [folder for folder in _FIRST_ON_PATH if Path(folder, "python").exists()]
    folders += [folder for folder in path.split(":") if folder and folder not in folders]
    environ = {
        "HOME": "/root",
        "USER": "root",
        "LANG": "C.UTF-8",
        # Last: a `python` for images that have only `python3`.
        "PATH": ":".join([*folders, str(places.programs)]),
    }
    if libraries:
        environ["LD_LIBRARY_PATH"] = libraries
    environ.update(config["environ"])
    environ.update(cloud.environ())
    return environ


def _login_paths() -> "tuple[str, str]":
    """PATH and LD_LIBRARY_PATH as somebody who logs in has them: images for training set them in a profile."""
    script = r'printf "\n%s\n%s" "$PATH" "${LD_LIBRARY_PATH:-}"'
    environ = {"HOME": "/root", "PATH": _PATH}
    try:
        done = subprocess.run(
            ["bash", "-lc", script],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LOGIN_S,
        )
        path, libraries = done.stdout.decode(errors="replace").split("\n")[-2:]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return _PATH, ""
    return path or _PATH, libraries


def agent_unit(job: str, python: str, places: Places, environ: "dict[str, str]") -> str:
    """The service. An agent that crashes takes the training with it and is started again to flush; one that is done,
    or crashes for the fourth time, gives the machine back."""
    # Not FailureAction, which comes before any restart, nor SuccessAction, which before systemd 254 comes between a
    # failure and its restart: https://github.com/systemd/systemd/issues/11419
    off = f'[ "$$SERVICE_RESULT" != success ] || exec {places.leave}'
    lines = [
        "[Unit]",
        f"Description=Stoker: the agent of {job}",
        # At the end of the machine docker goes after the agent: before it, it would kill a training that saves.
        "After=network.target docker.service",
        "StartLimitIntervalSec=1d",
        "StartLimitBurst=4",
        "OnFailure=stoker-leave.service",
        "",
        "[Service]",
        f"ExecStart={_quoted(python)} {_quoted(str(places.agent))} {_quoted(str(places.node))}",
        f"ExecStopPost=/bin/sh -c '{off}'",
        f"WorkingDirectory={places.node.parent}",
        *(f"Environment={_quoted(name + '=' + value)}" for name, value in sorted(environ.items())),
        f"StandardOutput=append:{places.node / 'agent.log'}",
        "StandardError=inherit",
        "Restart=on-failure",
        "RestartSec=1",
        # The agent alone hears SIGTERM, and saves; whatever it leaves behind is killed.
        "KillMode=mixed",
        "TimeoutStopSec=90",
        # An agent that hangs is as good as dead: see `stoker.agent.systemd_watchdog`.
        f"WatchdogSec={_HUNG_S:d}",
        "NotifyAccess=main",
        # Groups of processes below its own; the kernel's killer takes the training, and the agent tells of it.
        "Delegate=yes",
        "OOMPolicy=continue",
        "OOMScoreAdjust=-500",
        "LimitNOFILE=1048576",
        "LimitMEMLOCK=infinity",
        "TasksMax=infinity",
        "",
        # Started again when the machine is: that agent never trains, it flushes and powers off.
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def start_agent(config: "dict[str, Any]", python: str, cloud: Cloud, places: Places) -> None:
    """Write what the agent is told and its service, and start it. Raises BootFailed."""
    places.programs.mkdir(parents=True, exist_ok=True)
    program = places.programs / "python"
    program.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n', encoding="utf-8")
    for folder in (places.home, places.programs, program):
        folder.chmod(0o755)
    places.node.mkdir(mode=0o700, parents=True, exist_ok=True)
    unit = agent_unit(config["node"]["job"], python, places, agent_environ(config, cloud, places))
    (places.units / "stoker-agent.service").write_text(unit, encoding="utf-8")
    node = dict(config["node"], rank=cloud.rank, instance=cloud.instance)
    # Last: its presence says that this machine has an agent.
    (places.node / "node.json").write_text(json.dumps(node, sort_keys=True, separators=(",", ":")), encoding="utf-8")
    # It waits for no order at its start: a docker may take for ever to come, and most jobs need none.
    command = ["systemctl", "enable", "--now", "--job-mode=ignore-dependencies", "stoker-agent.service"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        text = done.stdout.decode(errors="replace").strip()
        raise BootFailed(f"`{' '.join(command)}` failed: {text} — Stoker needs an image with systemd")


# ── The whole ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def install(config: "dict[str, Any]", python: str, places: Places, cloud: Cloud) -> None:
    """From a bare machine to a running agent. Raises BootFailed."""
    say(f"{cloud.instance} in {cloud.zone} is rank {cloud.rank} of {config['node']['job']}")
    if cloud.rank >= config["node"]["nodes"]:
        raise BootFailed(f"rank {cloud.rank} is one too many — the request was changed; launch it again")
    name = config["bundles"][config["tag"]]
    places.home.mkdir(parents=True, exist_ok=True)
    archive = places.home / "agent.tar.gz"
    # A name is the digest, and a generation where that is not the first.
    fetch(cloud, config["bundle_key"].replace("{name}", name), name.partition("-")[0], archive)
    unpack(archive, places.agent)
    archive.unlink()
    check_agent(python, places.agent)
    start_agent(config, python, cloud, places)
    say("the agent is started")


def report(
    config: "dict[str, Any]", failure: str, places: Places, connect: "Callable[[dict[str, Any]], Cloud]"
) -> None:
    """Tell the console, and bring the whole output to the bucket. Never raises: there is nobody left to tell."""
    line = f"boot failed: {failure}"
    say(line)
    hurry(_REPORT_S)
    try:
        cloud = connect(config)
        key = config["output_key"].replace("{rank}", str(cloud.rank)).replace("{instance}", cloud.instance)
        data = _output(places.output, line)
        patiently(lambda: cloud.put(key, data))
    except Exception as error:  # noqa: BLE001 - the last thing that happens on this machine
        say(f"nor can this be brought to the bucket: {error}")


def _output(path: Path, line: str) -> bytes:
    """Everything that was said. It passes through `tee`, which may be a little behind."""
    until = time.monotonic() + 2.0
    while True:
        data = path.read_bytes() if path.exists() else b""
        if line.encode() in data:
            return data[-_MOST_OUTPUT:]
        if time.monotonic() >= until:
            return data[-_MOST_OUTPUT:] + f"stoker: {line}\n".encode()
        time.sleep(0.02)


def hurry(most_s: float) -> None:
    """From here on nothing is waited for any longer than this."""
    name = "STOKER_BOOT_PATIENCE_S"
    os.environ[name] = str(min(most_s, float(os.environ.get(name) or most_s)))


def leave(config: "dict[str, Any]", connect: "Callable[[dict[str, Any]], Cloud]") -> int:
    """Give the machine back. The script switches it off in any case; with `KEPT` it asks no other Python before."""
    hurry(_LEAVE_S)
    try:
        cloud = connect(config)
        patiently(cloud.leave)
        return 0
    except Exception as error:  # noqa: BLE001 - the last thing that happens on this machine
        say(f"the machine cannot give itself back: {error}")
        return KEPT


def main(argv: "list[str]", connect: "Callable[[dict[str, Any]], Cloud]") -> int:
    """Do what was asked for. `connect` makes this machine's `Cloud`, and raises BootFailed where it cannot."""
    places = Places()
    config = json.loads(Path(argv[0]).read_text())
    if argv[1] == "--leave":
        return leave(config, connect)
    try:
        if argv[1] == "--failed":
            # In the C locale an old Python takes what is not ASCII apart.
            raise BootFailed(os.fsencode(argv[2]).decode("utf-8", "replace"))
        config["tag"] = argv[2]
        install(config, argv[1], places, connect(config))
        return 0
    except BootFailed as failure:
        report(config, str(failure), places, connect)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the console and the bucket
        import traceback

        traceback.print_exc(file=sys.stdout)
        what = f"{error!r} — this is a fault in Stoker or a broken image; the lines above say where"
        report(config, what, places, connect)
    return 1
