"""Package sources that replace the public ones, as a job file names them. Addresses hold no password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from stoker.model import secret_refs
from stoker.model.spec import Environment, PackageIndex

_SCHEMES = ("http", "https", "file")
# User name that an index expects with a token, by kind of secret.
_USERS = {"aws-codeartifact": "aws", "gcp-token": "oauth2accesstoken"}
# User name for a token without a user, by convention of Python package indexes.
_TOKEN_USER = "__token__"


@dataclass(frozen=True)
class Address:
    """The URL of an index without credentials, and the user if one was named."""

    url: str
    user: str | None = None

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)


@dataclass(frozen=True)
class DebSource:
    """A line of apt's sources. `suite` and the components may be empty: then the machine's own release is used."""

    address: Address
    options: str = ""
    suite: str = ""


def read_address(text: str) -> Address:
    """Parse an address. Raises ValueError, which never repeats the text: it may hold a password."""
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
            "holds a password, and job files are stored in clear; leave it out and name a reference in `secret`, "
            "such as secret: env:NAME or aws-sm:NAME"
        )
    _, _, place = parts.netloc.rpartition("@")
    return Address(parts._replace(netloc=place).geturl(), unquote(user) if user else None)


def read_deb(text: str) -> DebSource:
    """Parse an address, or everything after `deb` in a line of sources.list. Raises ValueError as `read_address`."""
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
    """The variables of this computer with passwords of package sources and registries.

    Only the installation gets them, and not the training.
    """
    container = environment.container
    sources = (environment.index, environment.apt_mirror, environment.conda_channel)
    references = [source.secret for source in sources if source is not None]
    references += [container.secret] if container is not None else []
    found = [secret_refs.parse(each) for each in references if each is not None]
    return frozenset(each.name for each in found if each.kind == "env")


def user_name(source: PackageIndex, address: Address) -> str:
    """The user name for an index with a secret."""
    return address.user or _USERS.get((source.secret or "").partition(":")[0], _TOKEN_USER)
