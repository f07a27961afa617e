"""Find out from an installer's output why it failed: the cause in a sentence, and if a retry may help.

uv, pip, conda, mamba, apt and git report errors only as text. All patterns for their texts are in this file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Length of a cause. The log has the complete output.
_LONGEST = 500
_LAST_LINES = 3
# Up to this many unrelated lines may follow the error that ended the program.
_UNRELATED_LINES = 3

# The beginning of an error, as uv, pip, conda, mamba, apt, dpkg, git, curl and Python write it. conda's message that
# pip failed is not a cause.
_BEGINS = re.compile(
    r"(?!CondaEnvException: Pip failed)"
    r"(?:error: |ERROR: |\s*× |E: |dpkg: error |Errors were encountered|(?:error|critical) +libmamba |fatal: |curl: \("
    r"|Pip subprocess error:|CondaError\b|[A-Za-z_][\w.]*(?:Error|Exception|NotFound|InvalidChannel): ?)"
)
_BELONGS = re.compile(r"\s|cause: |hint: |note: |[├╰│└─]")
# Marks at the beginning of a line. They are redundant, because the order of the lines shows the same.
_MARKS = re.compile(r"^(?:error: |ERROR: |E: |[×├╰│└─▶> ]+|(?:error|critical) +libmamba |Pip subprocess error:)+")
_CAUSED = re.compile(r"cause: |[├╰]─")
_NOISE = re.compile(r"Using Python \S+ environment|[\^~ ]+$|\[(?:std(?:out|err)|end of output)\]$|--- stderr$")

# Refusals that a retry does not change: a wrong name or password, or a bad certificate.
_REFUSED = re.compile(r"certificate|CERT_|\b40[134] (?:Unauthorized|Forbidden|Not Found)", re.IGNORECASE)
# A server did not answer or was overloaded: a retry may help. The matching text is part of the message to the user.
_SILENT = re.compile(
    r"temporary failure (?:in name resolution|resolving)|name or service not known|could(?: not|n't) resolve \w*"
    r"|no address associated with hostname|failed to resolve '|dns error"
    r"|connection (?:refused|reset|aborted|timed out|failed|broken|closed before message completed)"
    r"|remote end closed connection|network is unreachable|no route to host|tunnel (?:error|connection failed)"
    r"|(?:could not|couldn't|unable to|failed to) connect to|(?:operation|read) timed out|timeout was reached"
    r"|connection to \S+ timed out|(?:Read|Connect)TimeoutError|IncompleteRead|end of file before message length"
    r"|error sending request|error decoding response body|Max retries exceeded|Mirror sync in progress"
    r"|HTTP 000 CONNECTION FAILED|HTTP (?:408|429|5\d\d) [A-Z ]+|(?:status|returned error): 5\d\d\b"
    r"|(?<=server error \()5\d\d[^)]*|408 Request Time-?out|429 Too Many Requests|too many 5\d\d error responses"
    r"|5\d\d (?:Internal Server Error|Bad Gateway|Service(?: Temporarily)? Unavailable|Gateway Time-?out)",
    re.IGNORECASE,
)
# A package may be "not found" because its server did not answer, which the output reports earlier.
_NOT_FOUND = re.compile(
    r"No matching distribution|Could not find a version|Unable to locate package|has no installation candidate"
    r"|Version '.*' for '.*' was not found|Couldn't find any package|Unable to fetch some archives"
)
# pip's last retry, and apt's message about package lists that it continues without.
_GIVEN_UP = re.compile(r"Retry\(total=0\b|Failed to fetch ")
_URL = re.compile(r"\b(?:https?|git|ssh|ftp)://[^\s'\"`<>()\[\],]+")
_HOST = re.compile(r"(?:resolv(?:e|ing)|connect to|host=|host(?:name)?:) ?'?([A-Za-z0-9][\w-]*(?:\.[\w-]+)+)")
# User and password in an address.
_USER = re.compile(r"(?<=://)[^/@\s\"'`]*@")


@dataclass(frozen=True)
class InstallErrorCause:
    """Why an installer failed.

    `text` is empty if nothing was printed. `transient`: a server did not answer, so a retry may help.
    """

    text: str
    transient: bool = False


def read_cause(printed: Sequence[str]) -> InstallErrorCause:
    """Return why a program failed that printed these lines. A long cause is cut; passwords in addresses are removed."""
    lines = [_plain(line) for line in printed]
    lines = [line for line in lines if line.strip() and not _NOISE.match(line.strip())]
    block = _block(lines)
    unanswered = _unanswered_request(block or lines[-_LAST_LINES:], lines)
    if unanswered is not None:
        return InstallErrorCause(unanswered, transient=True)
    text = _join(block) if block else " | ".join(line.strip() for line in lines[-_LAST_LINES:])
    return InstallErrorCause(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1].rstrip()}…")


def _plain(line: str) -> str:
    """Remove passwords, and reduce white space after the indentation to single spaces: apt aligns its messages."""
    words = " ".join(line.split())
    return _USER.sub("", f"{line[: len(line) - len(line.lstrip())]}{words}")


def _block(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of the last error and of the errors right before it; empty if no error is recognised."""
    last = max((at for at, line in enumerate(lines) if _BEGINS.match(line)), default=None)
    if last is None or sum(not _is_of_an_error(line) for line in lines[last:]) > _UNRELATED_LINES:
        return ()
    first = at = last
    while at > 0 and _is_of_an_error(lines[at - 1]):
        at -= 1
        first = at if _BEGINS.match(lines[at]) else first
    return lines[first:]


def _is_of_an_error(line: str) -> bool:
    return _BEGINS.match(line) is not None or _BELONGS.match(line) is not None


def _unanswered_request(block: Sequence[str], lines: Sequence[str]) -> str | None:
    """Describe the last server that did not answer, and how; None if all servers answered."""
    if any(_REFUSED.search(line) for line in block):
        return None
    reports = [line for line in block if _SILENT.search(line)]
    if not reports and any(_NOT_FOUND.search(line) for line in block):
        reports = [line for line in lines if _GIVEN_UP.search(line) and _SILENT.search(line)]
    if not reports:
        return None
    *_, how = _SILENT.findall(reports[-1])
    return f"{_place(reports[-1:]) or _place(block) or _place(lines) or 'a server'} does not answer ({how.strip()})"


def _place(lines: Sequence[str]) -> str | None:
    urls = [url.rstrip(".:;") for line in lines for url in _URL.findall(line)]
    hosts = [host for line in lines for host in _HOST.findall(line)]
    return next(iter([*urls, *hosts]), None)


def _join(lines: Sequence[str]) -> str:
    """Join the lines into one for the user: a cause follows a colon, a hint or another error follows a semicolon."""
    text = ""
    for line in lines:
        words = _MARKS.sub("", line.strip())
        if not words:
            continue
        if not text:
            text = words.removeprefix("cause: ")
        elif _CAUSED.match(line.strip()):
            text = f"{text.rstrip(':')}: {words.removeprefix('cause: ')}"
        elif words.startswith("hint: ") or _BEGINS.match(line):
            text = f"{text.rstrip('.')}; {words}"
        else:
            text = f"{text} {words}"
    return text
