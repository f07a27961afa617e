"""The labels that identify Stoker's resources, and a job's tags encoded as labels.

A label consists of lower-case letters, digits, `_` and `-`, at most 63 of them. Every other byte is written as `_` and
two hexadecimal digits, so that a tag can be read back exactly as it was written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from stoker.providers.base import LaunchOrder
from stoker.providers.job_tags import check_tags

STORE = "stoker-store"
JOB = "stoker-job"
CLAIM = "stoker-claim"
SUBMITTER = "stoker-submitter"
OURS = "stoker-"

# https://cloud.google.com/compute/docs/labeling-resources#restrictions
LENGTH = 63
_MOST_LABELS = 64
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_HEX = re.compile(r"[0-9a-f]{2}")
_ESCAPED = re.compile(rb"_([0-9a-f]{2})")
# Keys must begin with a letter; this prefix is put before one that does not. No plain text is encoded to begin so.
_FRONT = "k_00"


def encode(text: str) -> str:
    """Encode a value as a label, of any length: `check` reports what is too long."""
    found = ""
    # Backwards: an underscore may stay unless the encoded text after it would make it look like an escape.
    for byte in reversed(text.encode("utf-8", "surrogatepass")):
        plain = byte in _PLAIN and not (byte == 0x5F and _HEX.match(found))
        found = (chr(byte) if plain else f"_{byte:02x}") + found
    return found


def decode(label: str) -> str:
    """Decode a label of `encode`. A label of another origin that cannot be decoded is returned as it is."""
    raw = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), label.encode("utf-8", "surrogatepass"))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return label


def encode_key(text: str) -> str:
    """Encode a key as a label's key, which begins with a letter."""
    found = encode(text)
    return found if "a" <= found[:1] <= "z" and not found.startswith(_FRONT) else _FRONT + found


def decode_key(label: str) -> str:
    """Decode a key of `encode_key`."""
    return decode(label.removeprefix(_FRONT))


def store_label(url: str) -> str:
    """The value of `stoker-store`: the store's address, or its digest where the address is too long for a label."""
    found = encode(url)
    return found if len(found) <= LENGTH else f"sha256-{hashlib.sha256(url.encode()).hexdigest()[: LENGTH - 7]}"


def of_order(order: LaunchOrder) -> dict[str, str]:
    """All labels of an order's machines and disks."""
    return {
        JOB: encode(order.job),
        CLAIM: str(order.claim),
        STORE: store_label(order.store),
        SUBMITTER: _fitting(order.submitter),
        **{encode_key(key): encode(value) for key, value in order.spec.written_tags.items()},
    }


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The job's own tags among a machine's labels."""
    return {decode_key(key): decode(value) for key, value in labels.items() if not key.startswith(OURS)}


def check(tags: Mapping[str, str]) -> None:
    """Raise UserError for a job's tag that does not fit into a label."""
    check_tags("Compute Engine", tags, _MOST_LABELS - 4, _problem)


def _problem(key: str, value: str) -> str | None:
    if not key:
        return "has no name; give it one"
    if key.startswith(OURS):
        return "is set by Stoker; choose another name"
    if key.startswith("goog-"):
        return "names that begin with goog- belong to Google; choose another"
    for what, label in (("name", encode_key(key)), ("value", encode(value))):
        if len(label) > LENGTH:
            longer = f" ({label[:12]}… there)" if label not in (key, value) else ""
            return f"the {what} has {len(label)} characters as a label{longer}; Compute Engine takes {LENGTH}"
    return None


def remarks(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Explain in one line how tags are stored that a label cannot hold as they are, since a filter needs that form."""
    odd = [key for key, value in tags.items() if (encode_key(key), encode(value)) != (key, value)]
    if not odd:
        return ()
    key, value = odd[0], tags[odd[0]]
    stored = f"tag {key} is stored as {encode_key(key)}={encode(value)}"
    more = f", and {len(odd) - 1} more alike" if len(odd) > 1 else ""
    advice = f"write {_key_like(key)}: {_like(value)} to filter by it"
    capitals = (key + value).lower() != key + value
    rule = "labels are lower-case" if capitals else "labels have an alphabet of their own"
    return (f"Compute Engine's {rule}: {stored}{more}; {advice}",)


def label_problem(key: str, value: object) -> str:
    """Why Google refuses this label, and a label that it accepts; empty where it accepts this one."""
    if not isinstance(value, str):
        return f"must be text, found {value!r}; put it into quotes"
    if _is_label(value) and _is_label(key) and key[:1].isalpha():
        return ""
    rule = f"labels are lower-case letters, digits, _ and -, {LENGTH} at most, and names begin with a letter"
    return f"Compute Engine's {rule}; write {_key_like(key)}: {_like(value)}"


def _like(text: str) -> str:
    """A similar text that is a valid label as it is."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:LENGTH] or "none"


def _key_like(text: str) -> str:
    found = _like(text)
    return found if found[0].isalpha() else f"tag-{found}"[:LENGTH]


def _is_label(text: str) -> bool:
    """Return whether Google accepts the text: letters of any script that are not capitals, digits, `_` and `-`."""
    plain = all(each in "_-" or (each.isalnum() and each == each.lower()) for each in text)
    return plain and len(text) <= LENGTH


def _fitting(text: str) -> str:
    while len(found := encode(text)) > LENGTH:
        text = text[:-1]
    return found
