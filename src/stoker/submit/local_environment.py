"""The parts of the submitter's computer that a job uses: its Python, its folders, its variables."""

# Links are not resolved: a virtual environment's python is a link, and the link is the environment.
# ruff: noqa: PTH100

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from stoker.core.poisoned_checkpoints import NONE_POISONED, poisoned_checkpoints
from stoker.jobfile.provider_fields import set_fields
from stoker.model import dlc_images, docker_flags, keys, secret_refs
from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities
from stoker.model.spec import Container, Spec
from stoker.secrets.masked_output import can_mask
from stoker.secrets.masker import SHORTEST_BYTES
from stoker.store.base import Store, open_store
from stoker.store.find_job import find_job
from stoker.submit.check_inputs import localise_input
from stoker.submit.python_interpreter import find_python

# Variables of the submitter's active environment. None of them is secret.
ENVIRON = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
# Variables that say where a bucket and its cloud are, for remote machines. None of them is secret.
STORE_ENVIRON = {
    "s3": (
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_LOGS",
        "AWS_ENDPOINT_URL_SECRETSMANAGER",
        "AWS_ENDPOINT_URL_SSM",
        "AWS_ENDPOINT_URL_CODEARTIFACT",
        "AWS_ENDPOINT_URL_ECR",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ALLOW_HTTP",
    ),
    "gs": (
        "STORAGE_EMULATOR_HOST",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER",
        "GOOGLE_CLOUD_PROJECT",
    ),
}

_INTERPRETER = re.compile(r"python[0-9.]*")
_SHELL_SIGNS = re.compile(r"[|&;<>$`(){}*?\\\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
# bash: `-o pipefail`, also as `-eo pipefail`.
_TAKES_VALUE = re.compile(r"-[a-z]*o")
_ASK_S = 10.0


def submitter_environ() -> dict[str, str]:
    """The variables by which the submitter's Python and programs are found."""
    return {name: os.environ[name] for name in ENVIRON if os.environ.get(name)}


def store_environ(url: str) -> dict[str, str]:
    """The variables by which the submitter's bucket is found."""
    names = STORE_ENVIRON.get(url.partition("://")[0], ())
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def unreachable(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each address of a bucket that is a loopback address, which means another computer everywhere."""
    return tuple(
        f"{name}={address} goes with the job, and means the machine itself there; give an address that machines reach"
        for name, address in environ.items()
        if name.startswith(("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")) and _is_loopback(_host(address))
    )


def _host(address: str) -> str:
    # Google's libraries take `host:port` as well.
    return urlsplit(address if "://" in address else f"//{address}").hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def localise(spec: Spec, capabilities: Capabilities, folder: Path, store: Store | None) -> Spec:
    """Make the spec's references to this computer exact. Raises UserError for what this computer lacks.

    Without a store, a job in `resume_from` stays as it is written.
    """
    _check_secrets(spec)
    _check_apt(spec, capabilities)
    _check_engine(spec, capabilities)
    _check_conda(spec, capabilities)
    inputs = {name: localise_input(name, source, spec, capabilities, folder) for name, source in spec.inputs.items()}
    environment = spec.environment
    # A container has Pythons of its own.
    if capabilities.runs_locally and environment.container is None:
        environment = replace(environment, python=find_python(environment.python, folder))
    elif capabilities.runs_locally and environment.container is not None:
        environment = replace(environment, container=_localise_volumes(environment.container, folder))
    resume_from = _resume_from(spec.resume_from, capabilities, folder, store) if spec.resume_from else None
    checkpoints = spec.checkpoints
    if checkpoints.copy_to is not None:
        checkpoints = replace(checkpoints, copy_to=copy_url(checkpoints.copy_to, capabilities, folder, store))
    return replace(spec, inputs=inputs, environment=environment, resume_from=resume_from, checkpoints=checkpoints)


def missing_script(run: str | tuple[str, ...], folder: Path) -> str | None:
    """The script that a simple command names and the folder lacks; None where no script is certainly missing.

    Only certain forms count: `python train.py`, `torchrun … train.py`, `bash run.sh`, `./run.sh`.
    """
    words = _words(run)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if not words:
        return None
    program = words[0].rpartition("/")[2]
    if _INTERPRETER.fullmatch(program) or program in ("bash", "sh"):
        script = _after_options(words[1:])
    elif program in ("torchrun", "accelerate", "deepspeed"):
        script = next((word for word in words[1:] if word.endswith(".py")), None)
    else:
        script = words[0] if words[0].startswith("./") else None
    if script is None or "{" in script or (folder / script).exists():
        return None
    return script


def _words(run: str | tuple[str, ...]) -> list[str]:
    if not isinstance(run, str):
        return list(run)
    text = run.strip()
    if _SHELL_SIGNS.search(text):
        return []
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


def _after_options(words: list[str]) -> str | None:
    """The first word that is neither an option nor an option's value; None where a module or a text is run."""
    rest = iter(words)
    for word in rest:
        if word.startswith(("-m", "-c")) or word in ("-", "--", "-s"):
            return None
        if word in ("-X", "-W") or _TAKES_VALUE.fullmatch(word):
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def _check_secrets(spec: Spec) -> None:
    for field, reference in _references(spec):
        variable = _variable(field, reference)
        if variable is None:
            continue
        if variable not in os.environ:
            raise UserError(f"{field}: {variable} is not set in your environment; export it first")
        if not os.environ[variable]:
            raise UserError(f"{field}: {variable} is empty in your environment; export the secret first")
        if secret_refs.parse(reference).key is not None:
            _check_member(field, reference)


def _check_member(field: str, reference: str) -> None:
    from stoker.model.errors import SetupFailed
    from stoker.secrets.fetch_secrets import fetch

    try:
        fetch(field, reference, os.environ)
    except SetupFailed as error:
        raise UserError(str(error)) from None


def unknown_image(spec: Spec) -> tuple[str, ...]:
    """A line about a Deep Learning Container of a version that no table has."""
    container = spec.environment.container
    line = dlc_images.unchecked(container.image) if container is not None else None
    return () if line is None else (line,)


def _check_engine(spec: Spec, capabilities: Capabilities) -> None:
    container = spec.environment.container
    if container is None or not capabilities.runs_locally:
        return
    if shutil.which(container.engine):
        if container.engine == "docker":
            _check_daemon()
        return
    other = "docker" if container.engine == "podman" else "podman"
    advice = f"set environment.container.engine: {other}" if shutil.which(other) else f"install {container.engine}"
    raise UserError(f"environment.container: there is no {container.engine} on this computer; {advice}")


def _check_daemon() -> None:
    """Check that Docker's daemon runs and admits this user."""
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return  # The daemon is busy. The agent waits longer when it starts the container.
    except OSError as error:
        raise UserError(f"environment.container: docker does not run: {error.strerror}; reinstall it") from None
    if asked.returncode:
        first = (asked.stderr.strip() or "it does not say why").splitlines()[0]
        denied = "permission denied" in asked.stderr.lower()
        advice = "join the group docker" if denied else "start it (`systemctl start docker`)"
        raise UserError(
            f"environment.container: docker's daemon does not answer: {first}; {advice}, or set DOCKER_HOST"
        )


def _localise_volumes(container: Container, folder: Path) -> Container:
    """The container with absolute paths for folders of this computer.

    Raises UserError for a folder that does not exist: docker would create it, and leave it behind.
    """

    def place(name: str, source: str) -> str:
        path = os.path.abspath(folder / Path(os.path.expanduser(source)))  # noqa: PTH111 - raises nothing
        try:
            os.stat(path)  # noqa: PTH116 - only its existence counts
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"environment.container.run.{name}: {path} is not on this computer; make it first, or write a name "
                "without a slash for a volume that the engine keeps"
            ) from None
        except OSError:
            pass  # The daemon may have access where this user has none.
        return path

    return replace(container, run=docker_flags.with_sources(container.run, place))


def _check_conda(spec: Spec, capabilities: Capabilities) -> None:
    if spec.environment.conda is None or spec.environment.container is not None or not capabilities.runs_locally:
        return
    from stoker.agent.environment.conda import is_installed

    if not is_installed():
        raise UserError(
            "environment.conda: there is no conda, mamba or micromamba on this computer; install one, set "
            "environment.container, or use environment.requirements"
        )


def _check_apt(spec: Spec, capabilities: Capabilities) -> None:
    """Raise UserError for packages that `local` lacks: Stoker never changes this computer."""
    if not spec.environment.apt or spec.environment.container is not None or not capabilities.runs_locally:
        return
    from stoker.agent.environment.apt import missing_packages

    missing = " ".join(missing_packages(spec.environment.apt))
    if missing:
        advice = f"run `apt-get install {missing}` as root, or set environment.container"
        raise UserError(
            f"environment.apt: not installed on this computer, which Stoker never changes: {missing}; {advice}"
        )


def unmasked(spec: Spec) -> tuple[str, ...]:
    """A line for each of the submitter's secrets that is too short to be masked in the log."""
    found = ((field, _variable(field, reference)) for field, reference in _references(spec))
    short = [field for field, variable in found if variable and not can_mask(os.environ.get(variable, ""))]
    return tuple(f"{field}: is shorter than {SHORTEST_BYTES} bytes, and is not masked in the log" for field in short)


def _variable(field: str, reference: str) -> str | None:
    """The variable that holds a secret; None where no variable does."""
    wanted = secret_refs.parse(reference)
    return (wanted.name or field.rpartition(".")[2]) if wanted.kind == "env" else None


def _references(spec: Spec) -> Iterator[tuple[str, str]]:
    """The references to secrets in the job, with their fields."""
    for name, reference in spec.secrets.items():
        yield f"secrets.{name}", reference
    for name, value, info in set_fields(spec):
        if info.form == "reference":
            yield name, str(value)


def copy_url(
    text: str, capabilities: Capabilities, folder: Path, store: Store | None, field: str = "checkpoints.copy_to"
) -> str:
    """The exact URL of `checkpoints.copy_to`. Raises UserError where machines cannot reach it, and for the store's."""
    try:
        target = open_store(text if "://" in text else os.path.abspath(folder / Path(text).expanduser()))
    except UserError as error:
        raise UserError(f"{field}: {error}") from None
    if target.is_local and not capabilities.runs_locally:
        raise UserError(f"{field}: {text} is on this computer, where the machines cannot reach it; give a bucket")
    place, own = f"{target.url.rstrip('/')}/", f"{store.url.rstrip('/')}/" if store is not None else None
    if own is not None and own.startswith(place):
        raise UserError(f"{field}: {text} has the store, {own}, in it; give a URL of its own")
    if own is not None and place.startswith(own) and place[len(own) :].partition("/")[0] in keys.ROOTS:
        raise UserError(f"{field}: {text} is where the store, {own}, keeps other things; give a URL of its own")
    return target.url


def _resume_from(text: str, capabilities: Capabilities, folder: Path, store: Store | None) -> str:
    """The exact form of `resume_from`: a URL, an absolute path, or the whole id of a job with a checkpoint."""
    if "://" in text:
        return text
    path = Path(os.path.abspath(folder / Path(text).expanduser()))
    if path.is_dir() or text.startswith((".", "/", "~")):
        if not path.is_dir():
            raise UserError(f"resume_from: there is no folder {path}; name a job, a URL or a folder")
        if not capabilities.runs_locally:
            raise UserError(f"resume_from: {path} is on this computer, where the machines cannot reach it; give a URL")
        return str(path)
    job, _, checkpoint = text.partition(":")
    if store is None:
        return text
    try:
        found = find_job(store, job)
    except UserError as error:
        raise UserError(f"resume_from: {error}") from None
    return f"{found}{_pinned(store, found, checkpoint)}"


def _pinned(store: Store, job: str, text: str) -> str:
    """The suffix that names the checkpoint. `:NAME` stays, for the newest of that name when the job starts.

    A reference becomes one that a node can read. Without a name it is the newest checkpoint, and nothing is pinned
    unless attempts of that job failed on its newest.
    """
    from stoker.core.governor_settings import DEFAULT
    from stoker.store import job_log
    from stoker.store.checkpoint_refs import claim_reference, resolve
    from stoker.store.checkpoints import choose, list_checkpoints

    state = job_log.read(store, job)
    listed = list_checkpoints(store, job)
    poisoned = poisoned_checkpoints(state, DEFAULT) if state is not None else NONE_POISONED
    try:
        chosen = resolve(listed, text or None, state, job, poisoned=poisoned).checkpoint
    except UserError as error:
        raise UserError(f"resume_from: {error}") from None
    if text:
        return f":{text}" if text == chosen.name else f":{claim_reference(chosen.place)}"
    return "" if choose(listed, NONE_POISONED) == chosen else f":{claim_reference(chosen.place)}"
