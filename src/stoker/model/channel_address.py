"""Addresses of notification channels, as people write them.

    sns:arn:aws:sns:…, arn:aws:sns:…     a topic of SNS
    https://…, http://…                  a webhook: a POST of JSON
    env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME      one of the others, stored as a secret
    anything else with ://               an address of Apprise

Addresses of chat services contain keys, so no message repeats an address as it is: see `masked`.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import socket
from typing import Literal
from urllib.parse import unquote, urlsplit

from stoker.model import secret_refs

Kind = Literal["sns", "webhook", "apprise", "reference"]

# Kinds of secret references that can hold an address; the others create tokens.
REFERENCES = ("env", "aws-sm", "aws-ssm", "gcp-sm")
_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(?:\.fifo)?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^\s]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Hosts where clouds give machines their keys, besides all link-local addresses.
_METADATA = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "fd00:ec2::254", "fd20:ce::254")
# Shorter parts of an address are words, not keys.
_SHORTEST_KEY = 6

EXPECTED = (
    f"expected an address such as sns:arn:aws:sns:… or https://…, one of Apprise's such as slack://…, or a reference "
    f"to one: {secret_refs.expected(REFERENCES)}"
)


def address_kind(text: str) -> Kind:
    """Return the kind of an address. Raises ValueError, which does not repeat the address: it may hold a key."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be seen; write it again without them")
    if topic_of(text) is not None:
        return "sns"
    if text.startswith(("sns:", "arn:")):
        raise ValueError("is no topic of SNS; write sns:arn:aws:sns:REGION:ACCOUNT:NAME")
    found = _SCHEME.fullmatch(text)
    if found is None:
        wanted = _reference(text)
        if wanted is None or wanted.kind not in REFERENCES or not wanted.name:
            raise ValueError(EXPECTED)
        return "reference"
    if found[1].lower() not in ("http", "https"):
        return "apprise"
    try:
        parts = urlsplit(text)
        usable = parts.hostname is not None and (parts.port or True)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("names no host; write https://HOST/PATH")
    return "webhook"


def topic_of(text: str) -> str | None:
    """Return the ARN of a topic; None for any other address."""
    arn = text.removeprefix("sns:")
    return arn if _TOPIC.fullmatch(arn) else None


def digest(text: str) -> str:
    """Name of a channel in the store, independent of how a topic is written. Reveals nothing of the address."""
    topic = topic_of(text)
    text = f"sns:{topic}" if topic is not None else text
    return hashlib.sha256(f"stoker-channel:{text}".encode(errors="backslashreplace")).hexdigest()[:16]


def masked(text: str) -> str:
    """The address without parts that may be a key: `slack://…`, `https://hooks.example/…`."""
    if topic_of(text) is not None or _reference(text) is not None:
        return text
    scheme, found, rest = text.partition("://")
    if not found:
        return "…"
    if scheme.lower() not in ("http", "https"):
        # Many Apprise addresses have a key in place of the host.
        return f"{scheme}://…"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return f"{scheme}://…"
    more = "/…" if parts.path.strip("/") or parts.query or "@" in rest else ""
    return f"{scheme}://{host}{port}{more}"


def default_name(text: str) -> str:
    """Name of a channel without a name of its own: `slack`, `sns`, `webhook`."""
    match address_kind(text):
        case "apprise":
            return re.sub(r"[^a-z0-9-]", "-", text.partition("://")[0].lower())
        case "reference":
            return re.sub(r"[^a-z0-9-]+", "-", text.partition(":")[2].lower()).strip("-")[:40] or "channel"
        case kind:
            return kind


def exposes_secret(text: str) -> bool:
    """Return whether everyone who can read the address can also use it."""
    if topic_of(text) is not None or _reference(text) is not None:
        return False
    try:
        parts = urlsplit(text)
        if parts.hostname in _LOOPBACK and "@" not in parts.netloc:
            return False
    except ValueError:
        return True
    return masked(text).endswith("…")


def without_keys(message: str, address: str) -> str:
    """A message of a service or library, without parts of the address that may be a key and without invisible
    characters."""
    message = "".join(char if char.isprintable() else " " for char in message)
    scheme, _, rest = address.partition("://")
    shown = masked(address)
    pair = unquote(rest.partition("/")[0].rpartition("@")[0])
    # Some services repeat the Authorization header that user and password become.
    header = base64.b64encode((pair if ":" in pair else f"{pair}:").encode(errors="replace")).decode() if pair else ""
    for part in sorted({rest, header, *re.split(r"[/?&=:@#,]", rest)}, key=len, reverse=True):
        if part in shown:
            continue
        for form in {part, unquote(part)}:
            if len(form) >= _SHORTEST_KEY:
                message = message.replace(form, "…")
    return " ".join(message.replace(f"{scheme}://…", shown).split())


def is_forbidden_target(text: str, *, loopback: bool = False) -> bool:
    """Return whether no job may make a governor send there: link-local addresses and metadata servers; with `loopback`
    also the governor's own computer. Judges the text alone, without resolving names."""
    try:
        host = (urlsplit(text).hostname or "").rstrip(".").lower()
    except ValueError:
        return True
    if host in _METADATA or (loopback and (host == "localhost" or host.endswith(".localhost"))):
        return True
    try:
        # As resolvers read it, including 0xa9fea9fe and numbers without dots.
        found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        try:
            found = ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_link_local or str(found) in _METADATA:
        return True
    return loopback and (found.is_loopback or found.is_unspecified)


def _reference(text: str) -> secret_refs.Reference | None:
    try:
        return secret_refs.parse(text)
    except ValueError:
        return None
