"""Pull the container image if it is not on this machine, and identify it by its digest.

The first node that resolves the image's name decides for all nodes and attempts of the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stoker.agent.container import registry_login
from stoker.agent.container.engine import FIELD, Engine, EngineResult
from stoker.agent.container.registry_login import RegistryLogin
from stoker.agent.node import AgentNode, AskStore
from stoker.agent.rendezvous import sleep_interruptibly
from stoker.agent.runtime import StepTimer
from stoker.model import codec, dlc_images, keys
from stoker.model.errors import CodecError, SetupFailed
from stoker.model.node_facts import ImageFact
from stoker.model.observed import Known
from stoker.model.spec import Container
from stoker.processes.container_sweep import ContainerRecord, container_name, write_record
from stoker.secrets.fetch_secrets import fetch
from stoker.store.node_facts import read_fact

# Pauses between pulls while a registry is down, five minutes in all: most outages are shorter, and a job has few
# attempts without progress.
PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0, 60.0, 60.0, 60.0, 60.0)
# Messages about outages of a registry or of the network, as docker, podman and their libraries print them. Nearly all
# contain a space, which no image name does.
_TRANSIENT = re.compile(
    r"TLS handshake timeout|i/o timeout|Client\.Timeout exceeded|context deadline exceeded|operation timed out|"
    r"connection timed out|connection reset by peer|connect: connection refused|network is unreachable|"
    r"no route to host|unexpected EOF|: EOF\s*$|server misbehaving|temporary failure in name resolution|"
    r"broken pipe|http2: server sent GOAWAY|toomanyrequests: |too many requests|"
    r"(?:status|status ?code|HTTP|registry)(?: from [A-Z]+ request to)?:? +(?:429|5\d\d)\b|"
    r"internal server error|bad gateway|service (?:temporarily )?unavailable|gateway time-?out",
    re.IGNORECASE,
)
_NO_HOST = re.compile(r"no such host", re.IGNORECASE)
# Answers of a working registry.
_MISSING = re.compile(r"manifest unknown|name unknown|not found|does not exist", re.IGNORECASE)
_DENIED = re.compile(r"unauthorized|denied|no basic auth|authentication required", re.IGNORECASE)
# Some overloaded registries answer with a web page, which is reported as an invalid character or status code.
_INVALID = re.compile(r"invalid(?! character| status code)", re.IGNORECASE)
_REMEDY = "choose a smaller image, or one in a registry of the machine's own region"


@dataclass(frozen=True)
class LocalImage:
    """An image that is on this machine."""

    name: str
    id: str
    # `repository@sha256:…`; None for an image that is in no registry.
    digest: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The name of exactly these bytes."""
        return self.digest or self.id

    @property
    def fact(self) -> ImageFact:
        return ImageFact(name=self.name, id=self.id, digest=self.digest)


class PullFailed(SetupFailed):
    """An image could not be pulled. `missing`: the registry has no such image. `user`: a retry is of no use."""

    def __init__(self, reason: str, *, user: bool, missing: bool = False) -> None:
        super().__init__(reason, user=user)
        self.missing = missing


class ImageFetcher:
    """The images of one engine. `login` is called only for a pull, and may raise SetupFailed.

    `pause` waits for this many seconds, and may raise to end this node's work.
    """

    def __init__(
        self,
        engine: Engine,
        login: Callable[[str], RegistryLogin | None],
        private: Path,
        say: Callable[[str], None],
        timed: StepTimer,
        pause: Callable[[float], None],
    ) -> None:
        self._engine = engine
        self._login = login
        self._private = private
        self._say = say
        self._timed = timed
        self._pause = pause

    def fetch(self, name: str, before: ImageFact | None = None) -> LocalImage:
        """Return the image that an earlier attempt or another node used (`before`), else what the name means now.

        Raises SetupFailed.
        """
        if before is not None:
            found = self._fetch_recorded(name, before)
            if found is not None:
                return found
        found = self._find(name)
        if found is None:
            self._pull(name)
            found = self._find(name)
        if found is None:
            raise SetupFailed(f"{FIELD}.image: {name} was pulled, but is not on this machine", user=False)
        return found

    def _fetch_recorded(self, name: str, before: ImageFact) -> LocalImage | None:
        identity = before.digest or before.id
        found = self._find(identity, name)
        if found is None and before.digest is not None:
            try:
                self._pull(before.digest)
            except PullFailed as error:
                # An overloaded registry must not lead to another image in the same job.
                if not error.missing:
                    raise
                self._say(
                    f"the image of the first attempt is no longer available, so the current {name} is used: {error}"
                )
                return None
            found = self._find(identity, name)
        if found is None:
            self._say(f"the image of the first attempt ({identity}) is not on this machine; the current {name} is used")
        return found

    def _find(self, reference: str, name: str | None = None) -> LocalImage | None:
        answer = self._engine.run_when_ready("image", "inspect", reference)
        if answer.code:
            return None
        try:
            return _read(codec.parse(answer.out)[0], name or reference)
        except (CodecError, ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"{FIELD}: {self._engine.program} gives no usable answer about {reference}: {error}"
            raise SetupFailed(what, user=False) from error

    def _pull(self, reference: str) -> None:
        login = self._login(reference)
        within = registry_login.login_folder(login, self._private) if login else nullcontext(None)
        with self._timed(f"{self._engine.program} pull {reference}", _REMEDY), within as folder:
            for pause_s in (*PAUSES_S, None):
                answer = self._engine.run(*pull_arguments(self._engine.program, reference, folder))
                if answer.code == 0:
                    return
                if pause_s is None or not is_transient(answer, reference):
                    break
                self._say(f"{reference} cannot be pulled now: {answer.message}; trying again in {pause_s:.0f} s")
                self._pause(pause_s)
        raise self._pull_failure(reference, answer)

    def _pull_failure(self, reference: str, answer: EngineResult) -> PullFailed:
        message, text = answer.message, _without_names(answer.err, reference)
        if answer.disk_full:
            return PullFailed(
                f"{FIELD}.image: there is no room for {reference}: {message}; {self._engine.disk_advice}", user=True
            )
        if is_transient(answer, reference):
            return PullFailed(f"{FIELD}.image: {reference} cannot be pulled: {message}", user=False)
        if _DENIED.search(text):
            advice = f"set {FIELD}.secret, or let the machine's own role read it"
            return PullFailed(f"{FIELD}.image: {reference} may not be pulled: {message}; {advice}", user=True)
        if _MISSING.search(text):
            return PullFailed(f"{FIELD}.image: there is no {reference}: {message}", user=True, missing=True)
        if _NO_HOST.search(text):
            where = registry_login.registry_of(reference)
            return PullFailed(f"{FIELD}.image: there is no registry {where}: {message}", user=True)
        return PullFailed(f"{FIELD}.image: {reference} cannot be pulled: {message}", user=True)


class JobImage:
    """Fetches the image of one job. `check` is called while it waits, and may raise to end this node's work."""

    def __init__(
        self, node: AgentNode, spec: Container, engine: Engine, ask: AskStore, check: Callable[[], None]
    ) -> None:
        self._node = node
        self._spec = spec
        self._engine = engine
        self._ask = ask
        self._pause = partial(sleep_interruptibly, check=check)

    def fetch(self, timed: StepTimer) -> LocalImage:
        """Return the image, and pull it first if needed. Raises SetupFailed, and whatever `check` raises."""
        root = self._node.paths.root
        login_folder = registry_login.private_folder(os.environ) / container_name(root)
        name = dlc_images.resolve(
            self._spec.image, os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        recorded = self._read_fact()
        # Written before the pull: a later sweep finds the password's folder even if this agent is killed.
        write_record(root, ContainerRecord(self._engine.program, str(login_folder)))
        images = ImageFetcher(self._engine, self._login, login_folder, self._node.say, timed, self._pause)
        image = images.fetch(name, recorded)
        if recorded is None:
            image = self._record(image, images)
        self._node.say(f"container: {name} ({image.identity})" if name != image.identity else f"container: {name}")
        return image

    def _read_fact(self) -> ImageFact | None:
        """Return the image that an earlier attempt, or another node of this one, has recorded for the name."""
        found = self._ask(lambda: read_fact(self._node.store, keys.image(self._node.config.job), ImageFact))
        return found.value.value if isinstance(found, Known) and found.value is not None else None

    def _record(self, image: LocalImage, images: ImageFetcher) -> LocalImage:
        """Record the image for all nodes. If another node was first, return its image instead."""
        key, data = keys.image(self._node.config.job), codec.dumps(image.fact)
        if self._ask(lambda: self._node.store.create(key, data)):
            return image
        first = self._read_fact()
        return image if first is None or first == image.fact else images.fetch(image.name, first)

    def _login(self, reference: str) -> RegistryLogin | None:
        """Fetch the password for the registry of an image, again for each pull: tokens expire. Raises SetupFailed."""
        registry = registry_login.registry_of(reference)
        secret_reference, field = self._spec.secret, f"{FIELD}.secret"
        if secret_reference is None:
            secret_reference, field = registry_login.reference_of(registry), f"{FIELD}.image"
            if secret_reference is None or registry_login.has_login(registry, os.environ):
                return None
        secret = self._ask(lambda: fetch(field, secret_reference, os.environ))
        return registry_login.make_login(registry, secret, field)


def is_transient(answer: EngineResult, reference: str) -> bool:
    """Tell if the same pull may succeed later, or on another machine."""
    if not answer.code or answer.disk_full:
        return False
    text = _without_names(answer.err, reference)
    if any(sign.search(text) for sign in (_MISSING, _DENIED, _INVALID)):
        return answer.unreachable
    # An unknown host may be a typing error in the image's name, except for the default registry.
    lost = _NO_HOST.search(text) is not None and registry_login.registry_of(reference) == registry_login.DOCKER_HUB
    return answer.unreachable or lost or _TRANSIENT.search(text) is not None


def _without_names(text: str, reference: str) -> str:
    """Return the engine's message without the parts that the user wrote."""
    text = re.sub(r"\bhttps?://[^\s\"]+", "", text)
    # A name of one word may be part of the message itself.
    names = {name for name in (reference, _repository(reference)) if not name.isalnum()}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "")
    return text


def pull_arguments(engine: str, reference: str, login: Path | None) -> list[str]:
    """Return the engine's arguments for a pull."""
    if login is None:
        return ["pull", "--quiet", reference]
    if engine == "podman":
        return ["pull", "--quiet", f"--authfile={login / 'config.json'}", reference]
    return [f"--config={login}", "pull", "--quiet", reference]


def _read(document: Mapping[str, object], name: str) -> LocalImage:
    config = document.get("Config") or {}
    assert isinstance(config, Mapping)
    digests = document.get("RepoDigests") or ()
    assert isinstance(digests, (list, tuple))
    variables = (word.partition("=") for word in config.get("Env") or ())
    identity = str(document["Id"])
    return LocalImage(
        name=name,
        id=identity if identity.startswith("sha256:") else f"sha256:{identity}",
        digest=_digest_of(name, tuple(map(str, digests))),
        environ={key: value for key, _, value in variables},
        entrypoint=_argv(config.get("Entrypoint")),
    )


def _argv(value: object) -> tuple[str, ...]:
    """Parse an entry point. Older podman gives a string where docker gives a list."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _digest_of(name: str, digests: tuple[str, ...]) -> str | None:
    """Return the digest under the requested name: several registries may know the same image."""
    repository = _repository(name)
    mine = [each for each in digests if each.partition("@")[0].endswith(repository)]
    found = next(iter((*mine, *digests)), None)
    # Podman gives digests even to images that were never in a registry.
    return None if found is None or found.startswith(("<none>", "localhost/")) else found


def _repository(name: str) -> str:
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
