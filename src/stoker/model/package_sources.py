"""Where packages come from instead of the public places, as a job file names it. Addresses here hold no password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from stoker.model import secret_refs
from stoker.model.spec import Environment, PackageIndex

_SCHEMES = ("http", "https", "file")
# Who an index takes the bearer of such a token for.
_USERS = {"aws-codeartifact": "aws", "gcp-token": "oauth2accesstoken"}
# What indexes of Python packages are told by whoever has a token and no name.
_ANYBODY = "__token__"


@dataclass(frozen=True)
class Address:
    """Where an index is, without credentials, and who asks, where that was said."""

    url: str
    user: str | None = None

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)


@dataclass(frozen=True)
class DebSource:
    """A line of apt's sources: `suite` and what follows it may be empty, then the machine's own release is meant."""

    address: Address
    options: str = ""
    suite: str = ""


def read_address(text: str) -> Address:
    """Raises ValueError with what is wrong. It never repeats the text, which may hold a password."""
    try:
        parts = urlsplit(text)
        host, password, user = parts.hostname, parts.password, parts.username
        _ = parts.port
    except ValueError:
        raise ValueError("expected an address such as https://packages.example/simple") from None
    if parts.scheme not in _SCHEMES or any(c.isspace() for c in text) or (parts.scheme != "file" and not host):
        raise ValueError("expected an address such as https://packages.example/simple")
    if password is not None:
        raise ValueError(
            "holds a password, and job files are kept in clear; leave it out and name where it is kept in `secret`, "
            "such as secret: env:NAME or aws-sm:NAME"
        )
    _, _, place = parts.netloc.rpartition("@")
    return Address(parts._replace(netloc=place).geturl(), unquote(user) if user else None)


def read_deb(text: str) -> DebSource:
    """An address, or all that stands behind `deb` in a line of sources.list. Raises ValueError as above."""
    words = text.split()
    if words[:1] == ["deb"]:
        words = words[1:]
    options = ""
    if words and words[0].startswith("["):
        end = next((place for place, word in enumerate(words) if word.endswith("]")), None)
        if end is None:
            raise ValueError("expected a `]` behind the options, as in [trusted=yes] https://mirror.example/debian")
        options, words = " ".join(words[: end + 1]), words[end + 1 :]
    if not words:
        raise ValueError("expected an address such as https://mirror.example/debian")
    return DebSource(read_address(words[0]), options, " ".join(words[1:]))


def private_variables(environment: Environment) -> frozenset[str]:
    """The variables of this computer that hold passwords of what packages and images come from.

    They are for what installs, and not for the training.
    """
    container = environment.container
    sources = (environment.index, environment.apt_mirror, environment.conda_channel)
    kept = [source.secret for source in sources if source is not None]
    kept += [container.secret] if container is not None else []
    found = [secret_refs.parse(each) for each in kept if each is not None]
    return frozenset(each.name for each in found if each.kind == "env")


def user_of(source: PackageIndex, address: Address) -> str:
    """Who is told to ask, where there is a secret."""
    return address.user or _USERS.get((source.secret or "").partition(":")[0], _ANYBODY)
