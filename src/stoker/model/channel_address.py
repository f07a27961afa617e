"""Where a message goes, as people write it.

    sns:arn:aws:sns:…, arn:aws:sns:…     a topic of SNS
    https://…, http://…                  a webhook: a POST of JSON
    env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME      one of the others, kept as a secret
    anything else with ://               an address of Apprise's

Addresses of chat services hold their own keys. So none is ever repeated in a message for people: see `masked`.
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

# Kinds of references that stand for an address; the others make tokens.
REFERENCES = ("env", "aws-sm", "aws-ssm", "gcp-sm")
_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(?:\.fifo)?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^\s]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Where machines of clouds are given their keys, beside every address of a link.
_METADATA = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "fd00:ec2::254", "fd20:ce::254")
# What is shorter than this is a word, not a key.
_SHORTEST_KEY = 6

EXPECTED = (
    f"expected an address such as sns:arn:aws:sns:… or https://…, one of Apprise's such as slack://…, or a reference "
    f"to one: {secret_refs.expected(REFERENCES)}"
)


def kind_of(text: str) -> Kind:
    """What stands there. Raises ValueError, which does not repeat it: it may hold a key."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be seen; write it again, without what came along")
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
    """The ARN of a topic, if that is what stands there."""
    arn = text.removeprefix("sns:")
    return arn if _TOPIC.fullmatch(arn) else None


def digest(text: str) -> str:
    """What a channel is called in the store, however a topic is written. Tells nothing of its address."""
    topic = topic_of(text)
    text = f"sns:{topic}" if topic is not None else text
    return hashlib.sha256(f"stoker-channel:{text}".encode(errors="backslashreplace")).hexdigest()[:16]


def masked(text: str) -> str:
    """The address without what may be a key: `slack://…`, `https://hooks.example/…`."""
    if topic_of(text) is not None or _reference(text) is not None:
        return text
    scheme, found, rest = text.partition("://")
    if not found:
        return "…"
    if scheme.lower() not in ("http", "https"):
        # Many of Apprise's addresses have a key where others have the host.
        return f"{scheme}://…"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return f"{scheme}://…"
    more = "/…" if parts.path.strip("/") or parts.query or "@" in rest else ""
    return f"{scheme}://{host}{port}{more}"


def short(text: str) -> str:
    """What a channel is called that has no name: `slack`, `sns`, `webhook`."""
    match kind_of(text):
        case "apprise":
            return re.sub(r"[^a-z0-9-]", "-", text.partition("://")[0].lower())
        case "reference":
            return re.sub(r"[^a-z0-9-]+", "-", text.partition(":")[2].lower()).strip("-")[:40] or "channel"
        case kind:
            return kind


def in_clear(text: str) -> bool:
    """Whether whoever can read it can use it."""
    if topic_of(text) is not None or _reference(text) is not None:
        return False
    try:
        parts = urlsplit(text)
        if parts.hostname in _LOOPBACK and "@" not in parts.netloc:
            return False
    except ValueError:
        return True
    return masked(text).endswith("…")


def scrubbed(said: str, address: str) -> str:
    """What a service or a library said, without any part of the address that may be a key; nor anything unseen."""
    said = "".join(char if char.isprintable() else " " for char in said)
    scheme, _, rest = address.partition("://")
    shown = masked(address)
    pair = unquote(rest.partition("/")[0].rpartition("@")[0])
    # As some repeat the header that it becomes.
    header = base64.b64encode((pair if ":" in pair else f"{pair}:").encode(errors="replace")).decode() if pair else ""
    for part in sorted({rest, header, *re.split(r"[/?&=:@#,]", rest)}, key=len, reverse=True):
        if part in shown:
            continue
        for form in {part, unquote(part)}:
            if len(form) >= _SHORTEST_KEY:
                said = said.replace(form, "…")
    return " ".join(said.replace(f"{scheme}://…", shown).split())


def inside(text: str, *, loopback: bool = False) -> bool:
    """Whether it is where no job may send a governor: links, and where clouds keep keys; with `loopback` the governor's
    own computer, too. Looks at what is written alone: a name is asked of nobody."""
    try:
        host = (urlsplit(text).hostname or "").rstrip(".").lower()
    except ValueError:
        return True
    if host in _METADATA or (loopback and (host == "localhost" or host.endswith(".localhost"))):
        return True
    try:
        # As resolvers read it: also 0xa9fea9fe, and numbers without dots.
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
