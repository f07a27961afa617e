"""The image: had from its registry where it is not here, and known by its digest ever after."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.container import registry_login
from stoker.agent.container.engine import FIELD, Answer, Engine
from stoker.agent.container.registry_login import Login
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import ImageFact

# What a registry gets to stand up again, five minutes in all: most of its troubles, and of the line's, are shorter, and
# the attempts of a job that make no progress are few.
PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0, 60.0, 60.0, 60.0, 60.0)
# What a registry says of its own trouble, or of the line to it, as docker, podman and their libraries print it. Nearly
# all have a space in them, which no name of an image has.
_PASSING = re.compile(
    r"TLS handshake timeout|i/o timeout|Client\.Timeout exceeded|context deadline exceeded|operation timed out|"
    r"connection timed out|connection reset by peer|connect: connection refused|network is unreachable|"
    r"no route to host|unexpected EOF|: EOF\s*$|server misbehaving|temporary failure in name resolution|"
    r"broken pipe|http2: server sent GOAWAY|toomanyrequests: |too many requests|"
    r"(?:status|status ?code|HTTP|registry)(?: from [A-Z]+ request to)?:? +(?:429|5\d\d)\b|"
    r"internal server error|bad gateway|service (?:temporarily )?unavailable|gateway time-?out",
    re.IGNORECASE,
)
_NO_HOST = re.compile(r"no such host", re.IGNORECASE)
# It was there, and it has answered.
_MISSING = re.compile(r"manifest unknown|name unknown|not found|does not exist", re.IGNORECASE)
_DENIED = re.compile(r"unauthorized|denied|no basic auth|authentication required", re.IGNORECASE)
# A page for people instead of an answer is how some say that they are overloaded.
_INVALID = re.compile(r"invalid(?! character| status code)", re.IGNORECASE)
_REMEDY = "choose a smaller image, or one in a registry of the machine's own region"


@dataclass(frozen=True)
class Image:
    """An image that is on this machine."""

    name: str
    id: str
    # `repository@sha256:…`; None for one that no registry knows.
    digest: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()

    @property
    def known_as(self) -> str:
        """What names these very bytes."""
        return self.digest or self.id

    @property
    def fact(self) -> ImageFact:
        return ImageFact(name=self.name, id=self.id, digest=self.digest)


class NotPulled(SetupFailed):
    """`missing`: the registry knows of no such image. `user` tells whether it is of use to ask again."""

    def __init__(self, reason: str, *, user: bool, missing: bool = False) -> None:
        super().__init__(reason, user=user)
        self.missing = missing


class Images:
    """Those of one engine. `login` is asked for only when something has to be pulled, and may raise SetupFailed.

    `pause` waits for so many seconds, and may raise what tells this node to go.
    """

    def __init__(
        self,
        engine: Engine,
        login: Callable[[str], Login | None],
        private: Path,
        say: Callable[[str], None],
        timed: Callable[[str, str], AbstractContextManager[None]],
        pause: Callable[[float], None],
    ) -> None:
        self._engine = engine
        self._login = login
        self._private = private
        self._say = say
        self._timed = timed
        self._pause = pause

    def bring(self, name: str, before: ImageFact | None = None) -> Image:
        """The image that an earlier attempt, or another node, had (`before`); else what the name means now.

        Raises SetupFailed.
        """
        if before is not None:
            found = self._bring_again(name, before)
            if found is not None:
                return found
        found = self._find(name)
        if found is None:
            self._pull(name)
            found = self._find(name)
        if found is None:
            raise SetupFailed(f"{FIELD}.image: {name} was pulled and is not there", user=False)
        return found

    def _bring_again(self, name: str, before: ImageFact) -> Image | None:
        known_as = before.digest or before.id
        found = self._find(known_as, name)
        if found is None and before.digest is not None:
            try:
                self._pull(before.digest)
            except NotPulled as error:
                # A registry that has no time now must not bring another image into the job.
                if not error.missing:
                    raise
                self._say(
                    f"the image of the first attempt cannot be had any more, so {name} is taken as it is: {error}"
                )
                return None
            found = self._find(known_as, name)
        if found is None:
            self._say(f"the image of the first attempt ({known_as}) is not on this machine; {name} is taken as it is")
        return found

    def _find(self, reference: str, name: str | None = None) -> Image | None:
        answer = self._engine.ask_first("image", "inspect", reference)
        if answer.code:
            return None
        try:
            return _read(json.loads(answer.out)[0], name or reference)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"{FIELD}: {self._engine.program} says nothing sensible of {reference}: {error}"
            raise SetupFailed(what, user=False) from error

    def _pull(self, reference: str) -> None:
        login = self._login(reference)
        within = registry_login.login_folder(login, self._private) if login else nullcontext(None)
        with self._timed(f"{self._engine.program} pull {reference}", _REMEDY), within as folder:
            for pause_s in (*PAUSES_S, None):
                answer = self._engine.ask(*pull_arguments(self._engine.program, reference, folder))
                if answer.code == 0:
                    return
                if pause_s is None or not passes(answer, reference):
                    break
                self._say(f"{reference} cannot be pulled now: {answer.said}; trying again in {pause_s:.0f} s")
                self._pause(pause_s)
        raise self._refusal(reference, answer)

    def _refusal(self, reference: str, answer: Answer) -> NotPulled:
        said, text = answer.said, _without_names(answer.err, reference)
        if answer.full:
            return NotPulled(f"{FIELD}.image: there is no room for {reference}: {said}; {self._engine.room}", user=True)
        if passes(answer, reference):
            return NotPulled(f"{FIELD}.image: {reference} cannot be pulled: {said}", user=False)
        if _DENIED.search(text):
            advice = f"set {FIELD}.secret, or let the machine's own role read it"
            return NotPulled(f"{FIELD}.image: {reference} may not be pulled: {said}; {advice}", user=True)
        if _MISSING.search(text):
            return NotPulled(f"{FIELD}.image: there is no {reference}: {said}", user=True, missing=True)
        if _NO_HOST.search(text):
            where = registry_login.registry_of(reference)
            return NotPulled(f"{FIELD}.image: there is no registry {where}: {said}", user=True)
        return NotPulled(f"{FIELD}.image: {reference} cannot be pulled: {said}", user=True)


def passes(answer: Answer, reference: str) -> bool:
    """Whether the same pull may well succeed later, or elsewhere."""
    if not answer.code or answer.full:
        return False
    text = _without_names(answer.err, reference)
    if any(sign.search(text) for sign in (_MISSING, _DENIED, _INVALID)):
        return answer.away
    # Of all hosts only that of a name without one cannot be mistyped.
    lost = _NO_HOST.search(text) is not None and registry_login.registry_of(reference) == registry_login.DOCKER_HUB
    return answer.away or lost or _PASSING.search(text) is not None


def _without_names(text: str, reference: str) -> str:
    """What the engine said, without what the person wrote."""
    text = re.sub(r"\bhttps?://[^\s\"]+", "", text)
    # A name of one word may be any word.
    names = {name for name in (reference, _repository(reference)) if not name.isalnum()}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "")
    return text


def pull_arguments(engine: str, reference: str, login: Path | None) -> list[str]:
    """What follows the engine's own name."""
    if login is None:
        return ["pull", "--quiet", reference]
    if engine == "podman":
        return ["pull", "--quiet", f"--authfile={login / 'config.json'}", reference]
    return [f"--config={login}", "pull", "--quiet", reference]


def _read(document: Mapping[str, object], name: str) -> Image:
    config = document.get("Config") or {}
    assert isinstance(config, Mapping)
    digests = document.get("RepoDigests") or ()
    assert isinstance(digests, (list, tuple))
    variables = (word.partition("=") for word in config.get("Env") or ())
    identity = str(document["Id"])
    return Image(
        name=name,
        id=identity if identity.startswith("sha256:") else f"sha256:{identity}",
        digest=_digest_of(name, tuple(map(str, digests))),
        environ={key: value for key, _, value in variables},
        entrypoint=_argv(config.get("Entrypoint")),
    )


def _argv(value: object) -> tuple[str, ...]:
    """Older podman gives a text where docker gives a list."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _digest_of(name: str, digests: tuple[str, ...]) -> str | None:
    """The one under the name that was asked for: the same image may be known to several registries."""
    repository = _repository(name)
    mine = [each for each in digests if each.partition("@")[0].endswith(repository)]
    found = next(iter((*mine, *digests)), None)
    # Podman gives digests to images that were never in any registry.
    return None if found is None or found.startswith(("<none>", "localhost/")) else found


def _repository(name: str) -> str:
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
