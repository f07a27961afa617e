"""Why an installer failed, out of what it printed: the cause in a sentence, and whether somebody did not answer.

uv, pip, conda, mamba, apt and git have no better way to tell than words. Their words are here, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Of a cause. The whole of it is in the log.
_LONGEST = 500
_LAST_LINES = 3
# So many lines of something else may follow an error that is still what it was about.
_FOREIGN_LINES = 3

# How an error begins, as uv, pip, conda, mamba, apt, dpkg, git, curl and Python write it. That pip failed is not why.
_BEGINS = re.compile(
    r"(?!CondaEnvException: Pip failed)"
    r"(?:error: |ERROR: |\s*× |E: |dpkg: error |Errors were encountered|(?:error|critical) +libmamba |fatal: |curl: \("
    r"|Pip subprocess error:|CondaError\b|[A-Za-z_][\w.]*(?:Error|Exception|NotFound|InvalidChannel): ?)"
)
_BELONGS = re.compile(r"\s|cause: |hint: |note: |[├╰│└─]")
# Marks at the beginning of a line, which the order of the words tells as well.
_MARKS = re.compile(r"^(?:error: |ERROR: |E: |[×├╰│└─▶> ]+|(?:error|critical) +libmamba |Pip subprocess error:)+")
_CAUSED = re.compile(r"cause: |[├╰]─")
_NOISE = re.compile(r"Using Python \S+ environment|[\^~ ]+$|\[(?:std(?:out|err)|end of output)\]$|--- stderr$")

# It has a reason that is no accident of the line: a name or a password that is wrong, or a certificate.
_REFUSED = re.compile(r"certificate|CERT_|\b40[134] (?:Unauthorized|Forbidden|Not Found)", re.IGNORECASE)
# Somebody did not answer, or had no time: asking again may help. What matches is what people are told.
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
# What is not found may be so because whoever was asked for it did not answer, which was told before.
_NOT_FOUND = re.compile(
    r"No matching distribution|Could not find a version|Unable to locate package|has no installation candidate"
    r"|Version '.*' for '.*' was not found|Couldn't find any package|Unable to fetch some archives"
)
# pip's last try, and what apt says of lists that it goes on without.
_GIVEN_UP = re.compile(r"Retry\(total=0\b|Failed to fetch ")
_URL = re.compile(r"\b(?:https?|git|ssh|ftp)://[^\s'\"`<>()\[\],]+")
_HOST = re.compile(r"(?:resolv(?:e|ing)|connect to|host=|host(?:name)?:) ?'?([A-Za-z0-9][\w-]*(?:\.[\w-]+)+)")
# Who asks, and by what password, in an address.
_USER = re.compile(r"(?<=://)[^/@\s\"'`]*@")


@dataclass(frozen=True)
class Cause:
    """`text` is empty where nothing was printed. `silent`: somebody did not answer, so it may go well the next time."""

    text: str
    silent: bool = False


def read_cause(printed: Sequence[str]) -> Cause:
    """Why a program failed that printed these lines. Long ones are cut at the end. Addresses lose their passwords."""
    lines = [_plain(line) for line in printed]
    lines = [line for line in lines if line.strip() and not _NOISE.match(line.strip())]
    block = _block(lines)
    silent = _silent(block or lines[-_LAST_LINES:], lines)
    if silent is not None:
        return Cause(silent, silent=True)
    told = _join(block) if block else " | ".join(line.strip() for line in lines[-_LAST_LINES:])
    return Cause(told if len(told) <= _LONGEST else f"{told[: _LONGEST - 1].rstrip()}…")


def _plain(line: str) -> str:
    """Without passwords, and with single spaces but for those that it begins with: apt aligns what it says."""
    words = " ".join(line.split())
    return _USER.sub("", f"{line[: len(line) - len(line.lstrip())]}{words}")


def _block(lines: Sequence[str]) -> Sequence[str]:
    """The lines of the last error, with those that come right before it; nothing where none is known for one."""
    last = max((at for at, line in enumerate(lines) if _BEGINS.match(line)), default=None)
    if last is None or sum(not _is_of_an_error(line) for line in lines[last:]) > _FOREIGN_LINES:
        return ()
    first = at = last
    while at > 0 and _is_of_an_error(lines[at - 1]):
        at -= 1
        first = at if _BEGINS.match(lines[at]) else first
    return lines[first:]


def _is_of_an_error(line: str) -> bool:
    return _BEGINS.match(line) is not None or _BELONGS.match(line) is not None


def _silent(block: Sequence[str], lines: Sequence[str]) -> str | None:
    """Who did not answer, and how that was said last; None where everybody did."""
    if any(_REFUSED.search(line) for line in block):
        return None
    told = [line for line in block if _SILENT.search(line)]
    if not told and any(_NOT_FOUND.search(line) for line in block):
        told = [line for line in lines if _GIVEN_UP.search(line) and _SILENT.search(line)]
    if not told:
        return None
    *_, how = _SILENT.findall(told[-1])
    return f"{_place(told[-1:]) or _place(block) or _place(lines) or 'a server'} does not answer ({how.strip()})"


def _place(lines: Sequence[str]) -> str | None:
    urls = [url.rstrip(".:;") for line in lines for url in _URL.findall(line)]
    hosts = [host for line in lines for host in _HOST.findall(line)]
    return next(iter([*urls, *hosts]), None)


def _join(lines: Sequence[str]) -> str:
    """One line for people. A cause stands behind a colon, a hint or another error behind a semicolon."""
    told = ""
    for line in lines:
        words = _MARKS.sub("", line.strip())
        if not words:
            continue
        if not told:
            told = words.removeprefix("cause: ")
        elif _CAUSED.match(line.strip()):
            told = f"{told.rstrip(':')}: {words.removeprefix('cause: ')}"
        elif words.startswith("hint: ") or _BEGINS.match(line):
            told = f"{told.rstrip('.')}; {words}"
        else:
            told = f"{told} {words}"
    return told
