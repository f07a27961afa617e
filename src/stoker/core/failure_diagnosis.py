"""Diagnose a failure from the end of a log: the kind of the last error decides. Pure.

Each line is judged alone, cut to `_LINE_CHARS`, with patterns that cannot backtrack far: a log may be hostile. Warnings
before the error do not count. An error that only reports another process (a lost connection, a collective that timed
out) is secondary: an error of the process itself shortly above it is the cause.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stoker.core.failure_patterns import PATTERNS
from stoker.model.node_facts import FailureCause

# A longer line is data, an attack, or quotes a long command. An error is at its beginning or at its end.
_LINE_CHARS = 2000
_END_CHARS = 300
# Length of the quoted line in the log and in messages.
_QUOTED_CHARS = 300
# A dying process, its neighbours and its launcher may print a few more lines. After more ordinary lines than this the
# training went on: the error was handled.
_ORDINARY_LINES = 40

# Number of last states of a progress bar, or last lines of a traceback within one line, that are read.
_MOST_STATES = 50
_LONGEST_TRACEBACK = 64 * 1024

# Names that an agent may report. Any other name would become a rule of that name.
NAMES = frozenset({"exception", "refused", *(pattern.name for pattern in PATTERNS)})

# Exceptions that only a program raises; their message may quote anything.
# fmt: off
_SCRIPT_TYPES = frozenset({
    "ArithmeticError", "AssertionError", "AttributeError", "FileExistsError", "FileNotFoundError", "ImportError",
    "IndentationError", "IndexError", "IsADirectoryError", "JSONDecodeError", "KeyError", "LookupError",
    "MemoryError", "ModuleNotFoundError", "NameError", "NotADirectoryError", "NotImplementedError",
    "OverflowError", "PermissionError", "RecursionError", "StopIteration", "SyntaxError", "TypeError",
    "UnboundLocalError", "UnicodeDecodeError", "UnicodeEncodeError", "UnpicklingError", "ValidationError",
    "ValueError", "ZeroDivisionError",
})
# Exceptions that report the end of another process, whose own output is above.
_WRAPPERS = frozenset({
    "CalledProcessError", "ChildFailedError", "KeyboardInterrupt", "ProcessExitedException",
    "ProcessRaisedException", "SignalException", "SystemExit", "_InactiveRpcError", "_MultiThreadedRendezvous",
})
# fmt: on
# Names of exceptions for mistakes in a program or its settings, of any library.
_MISTAKE = re.compile(
    r"(?:Argument|Attribute|Config(?:uration)?|Decode|Import|Index|Key|Pars(?:e|er|ing)|Schema|Syntax|Type|Validation"
    r"|Value)(?:Error|Exception)$"
)
# Exceptions that say what failed but not why: an error shortly above them names the cause, if there is one.
_VAGUE = re.compile(
    r"[\w.]{0,200}SignalException: |(?:BrokenPipeError|EOFError|ConnectionRefusedError|ConnectionAbortedError)\b"
    r"|RuntimeError: No CUDA GPUs are available"
    r"|RuntimeError: DataLoader worker \(pid\(s\) [\d, ]{1,200}\) exited unexpectedly"
    r"|RuntimeError: \[enforce fail at inline_container\.cc:\d{1,6}\] \. unexpected pos"
)
# Client libraries: a remote server that closed a connection is no rank of this job.
# fmt: off
_CLIENTS = (
    "aiobotocore.", "aiohttp.", "azure.", "boto3.", "botocore.", "fsspec.", "gcsfs.", "google.", "http.", "httpcore.",
    "httpx.", "huggingface_hub.", "mlflow.", "requests.", "s3transfer.", "urllib.", "urllib3.", "wandb.",
)
# fmt: on

# Each removes at most one space after it, so that frames of a traceback stay indented.
_PREFIXES = (
    re.compile(r"\[[^\[\]\s]{1,40}\](?:<std(?:err|out)>)?:? ?"),  # [rank0]: of torchrun, [1,0]<stderr>: of mpirun
    re.compile(r"[EF]\d{3,4} \d\d:\d\d:\d\d\.\d{1,9} [^\s\]]{1,200}(?: [^\s\]]{1,200})?\] ?"),  # of a launcher's log
    re.compile(r"\([^()]{1,60}\) "),  # (RayWorkerWrapper pid=4009)
    re.compile(r"[\w.-]{0,79}[\d-]: (?=Traceback |[\w.]{1,200}(?:Error|Exception)\b|\s|\[)"),  # worker-0: of pdsh
    re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?:? "),  # of a collector of logs
    re.compile(r'AlgorithmError: [^"]{0,200}ErrorMessage "'),  # of SageMaker
    re.compile(r" {2,40}\| "),  # of a group of exceptions
)
# At the end of a line: a progress bar may precede it.
_TRACEBACK = re.compile(r"\bTraceback \(most recent call last\):\s{0,8}$")
# A whole traceback as one text, as loggers of JSON write it.
_IN_ONE_LINE = "Traceback (most recent call last):\\n"
# The same in torchrun's table, where every line is indented.
_IN_TABLE = re.compile(r"\s{1,8}traceback\s{0,8}: Traceback ")
# Python prints these exceptions and goes on: at the end of a process, or in a destructor.
_IGNORED = re.compile(r"Exception ignored in\b|Error in atexit\._run_exitfuncs|Error in sys\.excepthook")
# A thread that ends this way does not end the process: an error above may have ended both.
_THREAD = re.compile(r"Exception in thread ")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,200}?(?:Error|Exception|Interrupt|Exit))(?::|$)")
# At the end of a traceback Python names exceptions that are not built in with their module.
_ANY_EXCEPTION = re.compile(
    r"((?:[A-Za-z_]\w{0,80}\.){1,12}(?:[A-Z_]\w{0,80}|\w{0,20}error|timeout)|StopIteration)(?::|$)"
)
# Metrics that look like exceptions: `MeanSquaredError: 0.25`.
_NUMBER = re.compile(r":\s{0,8}[-+]?[\d.]{1,40}(?:e[-+]?\d{1,4})?%?\s{0,8}$|:\s{0,8}(?:nan|inf)$")
_ESCAPES = re.compile(r"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)")
_THROWN = re.compile(r"\s{0,8}what\(\):\s")
_CRASHED = re.compile(
    r"Fatal Python error: (?:Segmentation fault|Bus error|Floating|Illegal instruction|Stack overflow)"
)
# Of glog (`[W1229 …`, `W0430 …`, `[I socket.cpp:…`, `W tensorflow/…]`), of NCCL, of Python's logging and warnings.
# `NCCL_DEBUG=INFO` is excluded: errors recommend it.
_BENIGN = re.compile(
    r"\[[WI](?:\d{3,4})? |^[WI]\d{3,4} |^[WI] \S{1,200}\] |\d: [WI] \S{1,200}\] "
    r"|(?<!=)\b(?:INFO|DEBUG|WARN|WARNING)\b|\b\w{0,60}Warning:"
)
# Messages of shells, Python and argparse, which raise no exception.
_REFUSED = re.compile(
    r"[\w./-]{1,100}: error: (?:unrecognized arguments|the following arguments|argument |ambiguous option)"
    r"|[\w./-]{1,100}: (?:line \d{1,6}: )?[\w./-]{1,100}: command not found"
    r"|[\w./-]{1,100}: (?:can't open file '|No module named )"
)
# The line between two exceptions of which the first led to the second.
_CHAIN = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause of the following"
)
# Lines around an error, possibly many: stacks, frames of tables, and final output of experiment trackers.
_PART = re.compile(r"\s|[│╭╰]|frame #|[=*-]{3}|wandb: |$")
# Prefix of the agent's own lines in the training's log.
AGENT_PREFIX = "[stoker] "
# `chain`: see `_CHAIN`. `part`: part of an error, or a warning. `ordinary`: any other output.
_Plain = Literal["chain", "part", "ordinary"]


@dataclass(frozen=True)
class _Found:
    """An error in a log. `weak`: an error above it, if any, is the cause."""

    cause: FailureCause
    weak: bool = False


def diagnose(lines: Sequence[str]) -> FailureCause | None:
    """Find the cause of a failure from the last error in these lines; None if they have no error."""
    secondary: FailureCause | None = None
    weakest: FailureCause | None = None
    own: FailureCause | None = None
    ordinary, chained, vague = 0, False, False
    for found in reversed(_Reader().read(lines)):
        if found == "chain":
            chained = own is not None
        elif isinstance(found, _Found):
            cause = found.cause
            if own is not None and not chained:
                return own
            if found.weak and cause.blame != "script":
                weakest = weakest or cause
            elif cause.blame == "machine" or (own is not None and cause.blame == "peer" and not _is_of_client(own)):
                return cause  # On its own, or as the exception that the script's exception was raised from.
            elif cause.blame == "peer":
                secondary = secondary or cause
            elif own is None or vague:
                own, vague = cause, found.weak
            ordinary, chained = 0, own is not None and vague
        elif found == "ordinary":
            ordinary += 1
            if ordinary > _ORDINARY_LINES:
                break
    return own or secondary or weakest


@dataclass
class _Reader:
    """Reads a log from its beginning. Lines of several processes may be interleaved."""

    # Number of open tracebacks, whose exception line has not come yet.
    inside: int = 0
    # Kind of the next traceback: an ignored exception, or the end of a thread.
    ignored: bool = False
    thread: bool = False
    # Inside torchrun's list of workers that it ended itself after the first failure.
    others: bool = False
    # Inside a traceback in torchrun's table.
    table: bool = False
    found: list[_Found | _Plain] = field(default_factory=list)

    def read(self, lines: Sequence[str]) -> list[_Found | _Plain]:
        """Classify each line: an error, or the kind of ordinary line."""
        for line in lines:
            for part in _parts(line):
                self._line(part)
        return self.found

    def _line(self, line: str) -> None:
        if line.startswith(AGENT_PREFIX):
            self.found.append("part")
            return
        text = _bare(_cut(_ESCAPES.sub("", line[: 2 * _LINE_CHARS] + line[2 * _LINE_CHARS :][-_LINE_CHARS:])))
        if self.table and text.startswith("  "):
            text = text[2:]
        self.ignored = self.ignored or _IGNORED.match(text) is not None
        self.thread = self.thread or _THREAD.match(text) is not None
        if _TRACEBACK.search(text):
            self.inside += 1
            self.table = _IN_TABLE.match(text) is not None
            self.found.append("part")
            return
        if text in ("Failures:", "Other Failures:") or text.startswith("Root Cause"):
            self.others = not text.startswith("Root Cause")
        # A box is a traceback by `rich`, which contains source code.
        if self.others or text.startswith(("│", "╭", "╰")) or (self.inside and _PART.match(text)):
            self.found.append("part")
            return
        self._end_of_traceback(text, _judge(text, raised=self.inside > 0))

    def _end_of_traceback(self, text: str, cause: FailureCause | None) -> None:
        """Handle a line after the frames of a traceback: its exception, or anything else."""
        ends = self.inside > 0 and (cause is not None or _EXCEPTION.match(text) is not None)
        if cause is None:
            self.found.append(_plain(text))
        elif ends and self.ignored:
            self.found.append("part")
        else:
            self.found.append(_Found(cause, weak=_VAGUE.match(cause.line) is not None or (ends and self.thread)))
        # One unrelated line closes one traceback: it may have been cut off.
        self.inside = max(0, self.inside - 1)
        if ends:
            self.ignored = self.thread = self.table = False


def _parts(line: str) -> Iterable[str]:
    """Split what a program wrote as one line: the states of a progress bar, between which an error may be, or a
    traceback with escaped line breaks."""
    if _IN_ONE_LINE in line:
        return line.split("\\n")[-_MOST_STATES:] if len(line) <= _LONGEST_TRACEBACK else (line,)
    if "\r" in line:
        return [state for state in line.split("\r") if state.strip()][-_MOST_STATES:] or ("",)
    return (line,)


def _plain(text: str) -> _Plain:
    if _CHAIN.match(text):
        return "chain"
    return "part" if _PART.match(text) or _BENIGN.search(text) else "ordinary"


def _cut(line: str) -> str:
    """Keep the beginning and the end of a line that is too long."""
    if len(line) <= _LINE_CHARS:
        return line
    return f"{line[: _LINE_CHARS - _END_CHARS]} … {line[-_END_CHARS:]}"


def _bare(line: str) -> str:
    """Remove the prefixes that launchers add."""
    for _ in range(3):
        for prefix in _PREFIXES:
            match = prefix.match(line)
            if match is not None:
                line = line[match.end() :]
                break
        else:
            break
    return line


def _judge(text: str, *, raised: bool) -> FailureCause | None:
    """Judge one line. `raised`: it ends a traceback, so it names an exception of any name."""
    named = raised or text.startswith(_CLIENTS)
    exception = _EXCEPTION.match(text) or (_ANY_EXCEPTION.match(text) if named else None)
    if exception is not None and (raised or not _NUMBER.match(text, exception.end(1))):
        return _judge_exception(exception[1], text, raised=raised)
    if _THROWN.match(text):
        return _match(text, raised=True) or _own(text)
    if _CRASHED.match(text):
        return _own(text)
    if _REFUSED.match(text):
        return FailureCause("refused", "script", text.strip()[:_QUOTED_CHARS])
    return None if _BENIGN.search(text) else _match(text, raised=False)


def _judge_exception(name: str, text: str, *, raised: bool) -> FailureCause | None:
    module, _, kind = name.rpartition(".")
    if kind in _SCRIPT_TYPES or _MISTAKE.search(kind):
        return _own(text)
    if raised and not module and not hasattr(builtins, kind) and not kind.endswith("RuntimeError"):
        # Python leaves out the module of classes of the script itself, whose messages may quote anything, and JAX that
        # of its XlaRuntimeError.
        return _match(kind, raised=True) or _own(text)
    found = _match(text, raised=True)
    if kind in _WRAPPERS:
        return found
    if name.startswith(_CLIENTS) and found is not None and found.blame == "peer":
        return _own(text)
    return found or _own(text)


def _own(text: str) -> FailureCause:
    return FailureCause("exception", "script", text.strip()[:_QUOTED_CHARS])


def _is_of_client(cause: FailureCause) -> bool:
    return cause.line.startswith(_CLIENTS)


def _match(text: str, *, raised: bool) -> FailureCause | None:
    for pattern in PATTERNS:
        if (raised or not pattern.raised) and pattern.regex.search(text):
            return FailureCause(pattern.name, pattern.blame, text.strip()[:_QUOTED_CHARS])
    return None
