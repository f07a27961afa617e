"""What is asked of the fake Cloud Storage and what it says: requests, answers, and their XML."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import formatdate
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.gcs.objects import Page, Refusal, Stored

_XML = "<?xml version='1.0' encoding='UTF-8'?>"
_XMLNS = "http://doc.s3.amazonaws.com/2006-03-01"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
# Kept with the object and given back with it.
_KEPT = ("content-type", "cache-control", "content-disposition", "content-encoding", "content-language")
_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_EVERYWHERE = frozenset({"x-goog-user-project", "x-goog-api-client"})


@dataclass(frozen=True)
class Asked:
    """One request for a bucket or an object."""

    method: str
    bucket: str
    name: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def only(self, *, parameters: tuple[str, ...] = (), conditions: tuple[str, ...] = ()) -> None:
        """Refuse whatever else was asked for."""
        for name in self.query:
            if name not in parameters:
                raise Refusal(400, "InvalidArgument", f"parameter {name}")
        for name in self.headers:
            unheard = name.startswith(("x-goog-", "x-amz-")) and not name.startswith("x-goog-meta-")
            if (unheard or name in _CONDITIONS) and name not in conditions and name not in _EVERYWHERE:
                raise Refusal(400, "InvalidArgument", f"header {name}")

    def number(self, name: str, where: dict[str, str]) -> int | None:
        text = where.get(name)
        if text is None:
            return None
        if not text.isdecimal():
            raise Refusal(400, "InvalidArgument", f"{name}: {text[:80]}")
        return int(text)

    @property
    def if_generation(self) -> int | None:
        return self.number("x-goog-if-generation-match", self.headers)

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, value) for name, value in self.headers.items() if name in _KEPT or name.startswith("x-goog-meta-")
        )


@dataclass(frozen=True)
class Answer:
    """What is said to it."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def listing(bucket: str, prefix: str, delimiter: str, page: Page) -> str:
    head = {"Name": bucket, "Prefix": prefix, "KeyCount": str(len(page.objects) + len(page.prefixes))}
    if delimiter:
        head["Delimiter"] = delimiter
    head["IsTruncated"] = "true" if page.then else "false"
    if page.then:
        head["NextContinuationToken"] = base64.urlsafe_b64encode(page.then.encode()).decode()
    inner = "".join(
        element(
            "Contents",
            {
                "Key": one.name,
                "Generation": str(one.generation),
                "MetaGeneration": "1",
                "LastModified": datetime.fromtimestamp(one.modified_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "ETag": one.etag,
                "Size": str(len(one.data)),
            },
        )
        for one in page.objects
    )
    inner += "".join(element("CommonPrefixes", {"Prefix": name}) for name in page.prefixes)
    return element("ListBucketResult", head, inner)


def element(name: str, fields: dict[str, str], inner: str = "") -> str:
    told = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in fields.items())
    return f"<{name} xmlns='{_XMLNS}'>{told}{inner}</{name}>" if "Result" in name else f"<{name}>{told}{inner}</{name}>"


def xml(text: str) -> Answer:
    return Answer(200, (_XML + text).encode(), (("Content-Type", "application/xml; charset=UTF-8"),))


def refused(refusal: Refusal) -> Answer:
    told = {"Code": refusal.code, "Message": refusal.message}
    if refusal.details:
        told["Details"] = refusal.details
    headers = [("Content-Type", "application/xml; charset=UTF-8")]
    if refusal.status == 401:
        headers.append(("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/"'))
    if refusal.size is not None:
        headers.append(("Content-Range", f"bytes */{refusal.size}"))
    return Answer(refusal.status, (_XML + element("Error", told)).encode(), tuple(headers))


def about(found: Stored) -> tuple[tuple[str, str], ...]:
    return (
        *((name.title(), value) for name, value in found.headers),
        ("Last-Modified", formatdate(int(found.modified_s), usegmt=True)),
        ("Accept-Ranges", "bytes"),
        ("x-goog-stored-content-length", str(len(found.data))),
        *written(found),
    )


def written(made: Stored) -> tuple[tuple[str, str], ...]:
    # The real one tells CRC32C as well, and nothing else of what came in parts. It takes minutes in plain Python.
    hashed = (("x-goog-hash", f"md5={made.md5}"),) if made.md5 else ()
    return (
        ("ETag", made.etag),
        ("x-goog-generation", str(made.generation)),
        ("x-goog-metageneration", "1"),
        *hashed,
    )


def matches(found: Stored, header: str) -> bool:
    return header.strip() == "*" or found.etag in [tag.strip() for tag in header.split(",")]


def span_of(header: str | None, size: int) -> range | None:
    if header is None:
        return None
    match = _RANGE.fullmatch(header)
    if match is None or match[0] == "bytes=-":
        raise Refusal(400, "InvalidArgument", f"Range: {header[:80]}")
    first, last = match[1], match[2]
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
    if begin >= end:
        raise Refusal(416, "InvalidRange", header, size=size)
    return range(begin, end)


def check_md5(asked: Asked) -> None:
    wanted = [asked.headers[name] for name in ("content-md5",) if name in asked.headers]
    for part in filter(None, asked.headers.get("x-goog-hash", "").split(",")):
        kind, _, value = part.strip().partition("=")
        if kind != "md5":
            raise Refusal(400, "InvalidArgument", f"x-goog-hash: {kind} is not known here")
        wanted.append(value)
    if wanted and {base64.b64encode(hashlib.md5(asked.body).digest()).decode()} != set(wanted):
        raise Refusal(400, "BadDigest")


def continued(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise Refusal(400, "InvalidArgument", "continuation-token") from None


def parts_of(body: bytes) -> list[tuple[int, str]]:
    try:
        root = ElementTree.fromstring(body)
        found = []
        for part in root:
            told = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in part}
            if set(told) != {"PartNumber", "ETag"}:
                raise ValueError(f"{sorted(told)} is not a part")
            etag = told["ETag"].strip('"')
            found.append((int(told["PartNumber"]), f'"{etag}"'))
        return found
    except (ElementTree.ParseError, ValueError) as error:
        raise Refusal(400, "MalformedCompleteMultipartUploadRequest", str(error)) from None
