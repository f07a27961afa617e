"""Make a plain EC2 machine a node: what the user-data runs there, once.

    python boot.pyz BOOT_JSON PYTHON TAG      install the agent of that tag under PYTHON and start it
    python boot.pyz BOOT_JSON --failed WHAT   only report that the boot failed

It learns from the metadata service who it is, fetches the agent that its user-data names by digest, and starts it under
systemd. Nothing here depends on a tag. What goes wrong is one line on the console, and the whole output in the bucket;
the user-data then powers the machine off.

Runs from a zip inside the user-data, on Python 3.6 or newer (see `stoker.aws`): `boot.json` holds what it must know.
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
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stoker.aws.imds import Imds, ImdsError
from stoker.aws.sigv4 import encoded, sign

T = TypeVar("T")

# How long each thing may take to come right. The machine's role and the rules of a bucket reach a new machine late;
# networks, later.
_ANSWER_S = 240.0
_ROLE_S = 90.0
_DENIED_S = 45.0
_ABSENT_S = 5.0
_DIGEST_S = 15.0
_REPORT_S = 60.0
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_S = 20.0
_LOGIN_S = 5.0
_CHECK_S = 60.0
_HUNG_S = 600
_CHUNK = 1 << 20
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


def say(text: str) -> None:
    """A line for the console, and for the file that the user-data keeps of it."""
    print("stoker: " + text, flush=True)


def patiently(attempt: "Callable[[], T]") -> T:
    """Try until it works. Raises BootFailed when what stood in the way stayed there."""
    began = time.monotonic()
    most_s = float(os.environ.get("STOKER_BOOT_PATIENCE_S") or _ANSWER_S)
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


# ── Who this machine is ───────────────────────────────────────────────────────────────────────────────────────────────


class Identity:
    """This machine, as its metadata tells it. Raises BootFailed when it does not."""

    def __init__(self, imds: Imds) -> None:
        self._imds = imds
        self.instance = self.must("meta-data/instance-id")
        self.rank = int(self.must("meta-data/ami-launch-index"))
        self.zone = self.must("meta-data/placement/availability-zone")
        self.region = self.may("meta-data/placement/region") or self.zone[:-1]
        self.domain = self.may("meta-data/services/domain") or "amazonaws.com"

    def must(self, path: str) -> str:
        def ask() -> str:
            found = self.may(path)
            if found is None:
                raise Unsettled(f"the metadata service has no {path} — start the machine again", _ABSENT_S)
            return found

        return patiently(ask)

    def may(self, path: str) -> "str | None":
        def ask() -> "str | None":
            try:
                return self._imds.get(path)
            except ImdsError as error:
                remedy = "let machines reach it (HttpEndpoint enabled in their metadata options)"
                raise Unsettled(f"{error} — {remedy}", _ANSWER_S) from None

        return patiently(ask)

    def credentials(self) -> "Any":
        try:
            found = self._imds.credentials()
        except ImdsError as error:
            raise Unsettled(f"{error} — check the machine's instance profile and its role", _ROLE_S) from None
        if found is None:
            remedy = "set resources.ec2.profile to one that may read the bucket (`stoker iam ec2` writes its policy)"
            raise Unsettled(f"the machine has no instance profile — {remedy}", _ROLE_S)
        return found


# ── The bucket ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Bucket:
    """Signed requests to one bucket, until there is an agent that can do better."""

    def __init__(self, name: str, environ: "dict[str, str]", region: str, identity: Identity) -> None:
        self._name = name
        self._endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        self.region = region
        self._identity = identity
        self._ahead = timedelta(0)

    def get(self, key: str, target: Path) -> str:
        """Fetch an object into a file. Answers its SHA-256. Raises Unsettled."""
        digest = hashlib.sha256()

        def keep(answer: http.client.HTTPResponse) -> None:
            with target.open("wb") as file:
                for chunk in iter(lambda: answer.read(_CHUNK), b""):
                    digest.update(chunk)
                    file.write(chunk)

        self._ask("GET", key, b"", keep)
        return digest.hexdigest()

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises Unsettled."""
        self._ask("PUT", key, data, lambda answer: answer.read())

    def _url(self, key: str) -> str:
        path = encoded(key)
        if self._endpoint:
            return f"{self._endpoint.rstrip('/')}/{self._name}/{path}"
        host = f"s3.{self.region}.{self._identity.domain}"
        # A name with dots is no part of the certificate's.
        return f"https://{host}/{self._name}/{path}" if "." in self._name else f"https://{self._name}.{host}/{path}"

    def _ask(self, method: str, key: str, data: bytes, take: "Callable[[http.client.HTTPResponse], object]") -> None:
        url = self._url(key)
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        at = datetime.now(timezone.utc) + self._ahead
        digest = hashlib.sha256(data).hexdigest()
        headers = sign(method, url, self._identity.credentials(), self.region, at, payload_digest=digest)
        connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        try:
            connection.request(method, parts.path, body=data or None, headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                take(answer)
            else:
                self._refused(method, key, answer)
        except ssl.SSLError as error:
            raise Unsettled(
                f"{parts.netloc} cannot be trusted: {error} — the image needs CA certificates", 30.0
            ) from None
        except (OSError, http.client.HTTPException) as error:
            remedy = "give the subnet a way to S3: a gateway endpoint, a NAT or a public address"
            raise Unsettled(f"{parts.netloc} does not answer: {error!r} — {remedy}", _ANSWER_S) from None
        finally:
            connection.close()

    def _refused(self, method: str, key: str, answer: http.client.HTTPResponse) -> None:
        text = answer.read(8192).decode(errors="replace")
        code = text.partition("<Code>")[2].partition("</Code>")[0] or str(answer.status)
        what = f"s3://{self._name}/{key}"
        home = answer.getheader("x-amz-bucket-region")
        if home and home != self.region and not self._endpoint:
            self.region = home
            raise Unsettled(f"the bucket is in {home}", _ANSWER_S)
        if code == "RequestTimeTooSkewed" and answer.getheader("Date"):
            # A clock that nobody has set yet.
            now = parsedate_to_datetime(str(answer.getheader("Date"))).astimezone(timezone.utc)
            self._ahead = now - datetime.now(timezone.utc)
        if answer.status in (401, 403) or code == "ExpiredToken":
            right = "s3:GetObject" if method == "GET" else "s3:PutObject"
            raise Unsettled(
                f"{what} is denied ({code}) — give the role of the instance profile {right} (see `stoker iam ec2`)",
                _DENIED_S,
            )
        if answer.status == 404:
            raise Unsettled(f"{what} is not there ({code}) — submit the job again", _ABSENT_S)
        raise Unsettled(f"{what}: S3 answered {answer.status} ({code}) — try again later", _ANSWER_S)


# ── The agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Places:
    """Where things go on the machine. STOKER_BOOT_ROOT puts all of them below another folder, for tests."""

    def __init__(self) -> None:
        root = Path(os.environ.get("STOKER_BOOT_ROOT") or "/")
        self.home = root / "opt/stoker"
        self.agent = self.home / "agent"
        self.programs = self.home / "bin"
        self.node = root / "var/lib/stoker/node"
        self.units = root / "etc/systemd/system"
        self.output = root / "var/log/stoker-boot.log"


def fetch(bucket: Bucket, key: str, digest: str, target: Path) -> None:
    """The agent's archive, verified. Raises BootFailed."""

    def attempt() -> None:
        found = bucket.get(key, target)
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
    code = "import sys; sys.path.insert(0, sys.argv[1]); import stoker.agent.main, stoker.stores.s3"
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


def agent_environ(config: "dict[str, Any]", region: str, places: Places) -> "dict[str, str]":
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
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    if endpoint:
        environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = endpoint
    # Where the bucket turned out to be.
    environ["AWS_REGION"] = region
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
    or crashes for the fourth time, powers the machine off."""
    # Not FailureAction, which comes before any restart, nor SuccessAction, which before systemd 254 comes between a
    # failure and its restart: https://github.com/systemd/systemd/issues/11419
    off = '[ "$$SERVICE_RESULT" != success ] || systemctl --no-block poweroff || systemctl poweroff --force'
    lines = [
        "[Unit]",
        f"Description=Stoker: the agent of {job}",
        "After=network.target",
        "StartLimitIntervalSec=1d",
        "StartLimitBurst=4",
        "StartLimitAction=poweroff",
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
        # An agent that hangs is as good as dead: see `stoker.agent.pulse`.
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


def start_agent(config: "dict[str, Any]", python: str, identity: Identity, region: str, places: Places) -> None:
    """Write what the agent is told and its service, and start it. Raises BootFailed."""
    places.programs.mkdir(parents=True, exist_ok=True)
    program = places.programs / "python"
    program.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n', encoding="utf-8")
    for folder in (places.home, places.programs, program):
        folder.chmod(0o755)
    places.node.mkdir(mode=0o700, parents=True, exist_ok=True)
    unit = agent_unit(config["node"]["job"], python, places, agent_environ(config, region, places))
    (places.units / "stoker-agent.service").write_text(unit, encoding="utf-8")
    node = dict(config["node"], rank=identity.rank, instance=identity.instance)
    # Last: its presence says that this machine has an agent.
    (places.node / "node.json").write_text(json.dumps(node, sort_keys=True, separators=(",", ":")), encoding="utf-8")
    command = ["systemctl", "enable", "--now", "stoker-agent.service"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        text = done.stdout.decode(errors="replace").strip()
        raise BootFailed(f"`{' '.join(command)}` failed: {text} — Stoker needs an image with systemd")


# ── The whole ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def install(config: "dict[str, Any]", python: str, places: Places) -> None:
    """From a bare machine to a running agent. Raises BootFailed."""
    identity = identify(config)
    say(f"{identity.instance} in {identity.zone} is rank {identity.rank} of {config['node']['job']}")
    if identity.rank >= config["node"]["nodes"]:
        raise BootFailed(f"rank {identity.rank} is one too many — the request was changed; launch it again")
    bucket = make_bucket(config, identity)
    digest = config["bundles"][config["tag"]]
    places.home.mkdir(parents=True, exist_ok=True)
    archive = places.home / "agent.tar.gz"
    fetch(bucket, config["bundle_key"].replace("{digest}", digest), digest, archive)
    unpack(archive, places.agent)
    archive.unlink()
    check_agent(python, places.agent)
    start_agent(config, python, identity, bucket.region, places)
    say("the agent is started")


def identify(config: "dict[str, Any]") -> Identity:
    return Identity(Imds(config["environ"].get("AWS_EC2_METADATA_SERVICE_ENDPOINT")))


def make_bucket(config: "dict[str, Any]", identity: Identity) -> Bucket:
    environ = config["environ"]
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or identity.region
    return Bucket(config["bucket"], environ, region, identity)


def report(config: "dict[str, Any]", failure: str, places: Places) -> None:
    """Tell the console, and bring the whole output to the bucket. Never raises: there is nobody left to tell."""
    line = f"boot failed: {failure}"
    say(line)
    os.environ["STOKER_BOOT_PATIENCE_S"] = str(
        min(_REPORT_S, float(os.environ.get("STOKER_BOOT_PATIENCE_S") or _REPORT_S))
    )
    try:
        identity = identify(config)
        key = config["output_key"].replace("{rank}", str(identity.rank)).replace("{instance}", identity.instance)
        data = _output(places.output, line)
        bucket = make_bucket(config, identity)
        patiently(lambda: bucket.put(key, data))
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


def main(argv: "list[str]") -> int:
    places = Places()
    config = json.loads(Path(argv[0]).read_text())
    try:
        if argv[1] == "--failed":
            # In the C locale an old Python takes what is not ASCII apart.
            raise BootFailed(os.fsencode(argv[2]).decode("utf-8", "replace"))
        config["tag"] = argv[2]
        install(config, argv[1], places)
        return 0
    except BootFailed as failure:
        report(config, str(failure), places)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the console and the bucket
        import traceback

        traceback.print_exc(file=sys.stdout)
        report(config, f"{error!r} — this is a fault in Stoker or a broken image; the lines above say where", places)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
