"""What the end of a log says about a failure: the last error decides, by its kind. Pure.

A line is judged by itself, cut to `_LINE_CHARS`, with patterns that cannot backtrack far: a log may be hostile.
Warnings before the error say nothing. An error that only tells of another process (a lost connection, a collective that
timed out) is secondary: an error of its own shortly above it is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.model import Blame, FailureCause

# A longer line is data, or an attack; what names the error stands at its beginning.
_LINE_CHARS = 2000
# Of the line that decided, what the log and people get.
_QUOTED_CHARS = 300
# A process that dies, its neighbours and its launcher may print a little more. After more ordinary lines than this,
# training went on: that error was handled.
_ORDINARY_LINES = 40


@dataclass(frozen=True)
class Pattern:
    """One kind of failure. `samples` are real lines that it must recognise, `others` lines that it must not."""

    name: str
    blame: Blame
    regex: re.Pattern[str]
    samples: tuple[str, ...]
    others: tuple[str, ...] = ()


# The first that matches a line decides. Errors of the script come first: they may quote what follows.
PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "gpu-memory",
        "script",
        re.compile(
            r"\bCUDA (?:error: )?out of memory\b|\bCuda failure (?:\d{1,4} )?'?out of memory|\bOutOfMemoryError\b"
            r"|\bCUBLAS_STATUS_ALLOC_FAILED\b"
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "RuntimeError: CUDA error: out of memory",
            "Cuda failure 'out of memory'",
            "Cuda failure 2 'out of memory'",
        ),
        ("OSError: [Errno 12] Cannot allocate memory",),
    ),
    Pattern(
        "cuda-usage",
        "script",
        re.compile(
            r"\bdevice-side assert triggered\b|\ban illegal memory access was encountered\b"
            r"|\bncclInvalid(?:Usage|Argument)\b|\bNCCL [Ee]rror\b[^,]{0,200}[,:] invalid (?:usage|argument)\b"
        ),
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "torch.distributed.DistBackendError: NCCL error in: ../c10d/ProcessGroupNCCL.cpp:1287, invalid usage",
            "RuntimeError: NCCL Error 5: invalid usage (run with NCCL_DEBUG=WARN for details)",
        ),
    ),
    Pattern(
        "gpu",
        "machine",
        re.compile(
            r"\bfallen off the bus\b|\bUnable to determine the device handle for (?:GPU|gpu)|\bGPU is lost\b"
            r"|\bERROR_GPU_IS_LOST\b|\buncorrectable (?:ECC|NVLink) error\b|\bhardware stack error\b"
            r"|\bCUDA error: (?:unspecified launch failure|the launch timed out|unknown error)"
            r"|\bCUDA-capable devices? ?(?:\(s\) )?(?:is/are|are) busy or unavailable\b|\bsystem not yet initialized\b"
            r"|\bCUDA_ERROR_(?:ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|HARDWARE_STACK_ERROR|LAUNCH_FAILED)\b"
            # 13, 31, 43 and 45 tell of what a program did to the GPU, or of another one's end.
            r"|\bNVRM: Xid \(PCI:[0-9A-Fa-f:.]{4,20}\): (?!(?:13|31|43|45)\b)\d{1,3}\b"
            r"|\b(?:Xid|XID) (?:48|62|64|74|79|92|94|95|119|120|14[0-9]|150)\b"
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.",
            "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error",
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000)",
            "XID 79(GPU has fallen off the bus) detected on PCI:0000:ae:00",
            "RuntimeError: CUDA error: unspecified launch failure",
            "RuntimeError: CUDA error: the launch timed out and was terminated",
            "torch.AcceleratorError: CUDA error: unknown error",
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "E tensorflow/stream_executor/cuda/cuda_driver.cc:1011] failed: CUDA_ERROR_ECC_UNCORRECTABLE",
        ),
        (
            "maXid=3",
            "maXid=79, step 4",
            "NVRM: Xid (PCI:0000:9b:00): 31, pid=1234, name=python3, MMU Fault",
            "taxid 79 of 100",
        ),
    ),
    Pattern(
        "disk-full",
        "machine",
        re.compile(r"\b(?:No space left on device|Disk quota exceeded)\b", re.IGNORECASE),
        ("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded: '/scratch/x'"),
    ),
    Pattern(
        "io",
        "machine",
        re.compile(
            r"\bInput/output error\b|\bStale (?:NFS )?file handle\b|\bTransport endpoint is not connected\b"
            r"|\bRemote I/O error\b"
        ),
        (
            "OSError: [Errno 5] Input/output error: '/media/project/L0550_RCA_sagital.pkl'",
            "OSError: [Errno 116] Stale file handle: '/home/xxx/.cache/huggingface/datasets/text/'",
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data'",
            "tar: /data/shard-000.tar: Cannot read: Input/output error",
        ),
        ("input/output error rate: 0.05", "Reading input/output embeddings"),
    ),
    Pattern(
        "host-memory",
        "machine",
        re.compile(
            r"\boom-kill\b|\bCannot allocate memory\b"
            r"|\bDataLoader worker \(pid\(?s?\)? \d+\) is killed by signal: Killed\b"
        ),
        (
            "OSError: [Errno 12] Cannot allocate memory",
            "RuntimeError: DataLoader worker (pid 3621) is killed by signal: Killed.",
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0",
        ),
        ("RuntimeError: DataLoader worker (pid 3621) is killed by signal: Segmentation fault.",),
    ),
    Pattern(
        "killed",
        "peer",
        re.compile(
            r"\bexitcode\s{0,8}: -9 \(pid\b|\bfailed \(exitcode: -9\)"
            r"|\bSignal 9 \(SIGKILL\) received by PID\b|\bdied with <Signals\.SIGKILL\b"
            r"|\bexited on signal 9 \(Killed\)|\bexits with return code = -9\b"
        ),
        (
            "  exitcode  : -9 (pid: 3437)",
            "E0501 11:12:35.1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9)",
            "  traceback : Signal 9 (SIGKILL) received by PID 3437",
            "subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.SIGKILL: 9>.",
            "mpirun noticed that process rank 3 with PID 0 on node algo-2 exited on signal 9 (Killed).",
            "[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9",
        ),
        ("  exitcode  : -6 (pid: 3437)", "  traceback : Signal 15 (SIGTERM) received by PID 3437"),
    ),
    Pattern(
        "nccl",
        "peer",
        re.compile(
            r"\bWatchdog caught collective operation timeout\b|\bDistBackendError\b|\bNCCL [Ee]rror\b"
            r"|\bwatchdog got stuck\b|\bSome NCCL operations have failed or timed out\b"
            r"|\bnccl(?:System|Remote|Internal|UnhandledCuda)Error\b|\bNCCL communicator was aborted\b"
            r"|\bDetected mismatch between collectives\b|\bNCCL timeout\b"
        ),
        (
            "  what():  [Rank 6] NCCL watchdog thread: Watchdog caught collective operation timeout: WorkNCCL(",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "torch.distributed.DistBackendError: NCCL error in: ../c10d/ProcessGroupNCCL.cpp:1275, internal error",
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "RuntimeError: NCCL communicator was aborted on rank 1.",
            "RuntimeError: NCCL Error 2: unhandled system error",
            "[PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds",
            "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,",
        ),
        (
            "user:16901:16967 [2] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
            "node0:13571:13571 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
        ),
    ),
    Pattern(
        "rendezvous",
        "peer",
        re.compile(
            r"\bConnection (?:reset|closed) by (?:remote )?peer\b|\bDist(?:Network|Store)Error\b"
            r"|\bRendezvous(?:Connection|Timeout|Closed|GracefulExit|State)Error\b|\bgot error: Socket Timeout\b"
            r"|\bThe (?:client|server) socket has (?:timed out|failed to (?:connect|listen))\b"
            r"|\bsendBytes failed\b|\bTimed out waiting \d+ms for (?:recv|send) operation\b"
            r"|\b[Ff]ailed to recv, got 0 bytes\b|\bin store based barrier\b"
            r"|\bTCPStore\b[^:]{0,80}\b(?:timed out|timeout|shut ?down|Broken pipe)\b"
        ),
        (
            "RuntimeError: Connection reset by peer",
            "Net : Connection closed by remote peer user<50260>",
            "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying",
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store",
            "RuntimeError: [1] is setting up NCCL communicator, but store->get('0') got error: Socket Timeout",
            "[rank2]: RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41112",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store",
        ),
        (
            "[rank1]:[W1229 22:06:38.55 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67): Broken pipe",
            "[W426 16:56:01.83 TCPStore.cpp:347] [c10d] TCP client failed - retrying (try=6): Connection reset by peer",
        ),
    ),
)
# Names of those that excuse the script: rules by which an attempt may be closed.
EXCUSES = tuple(dict.fromkeys(pattern.name for pattern in PATTERNS if pattern.blame != "script"))

# What an agent may say. Another name would become a rule of that name.
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
# fmt: on
# Exceptions that pass on the end of another process, whose own words stand above.
# fmt: off
_WRAPPERS = frozenset({
    "CalledProcessError", "ChildFailedError", "KeyboardInterrupt", "ProcessExitedException",
    "ProcessRaisedException", "SignalException", "SystemExit",
})
# fmt: on
# A server elsewhere that closed a connection is no rank of this job.
_CLIENTS = ("aiohttp.", "botocore.", "httpx.", "huggingface_hub.", "requests.", "urllib3.", "urllib.", "http.")

# At most one blank behind each: what is left of a traceback's frame stays indented.
_PREFIXES = (
    re.compile(r"\[[^\[\]\s]{1,40}\](?:<std(?:err|out)>)?:? ?"),  # [rank0]: of torchrun, [1,0]<stderr>: of mpirun
    re.compile(r"[EF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} [^\s\]]{1,200}(?: [^\s\]]{1,200})?\] ?"),  # of a launcher's log
    re.compile(r"\([^()]{1,60}\) "),  # (RayWorkerWrapper pid=4009)
    re.compile(r"[\w.-]{0,79}[\d-]: (?=Traceback |[\w.]{1,200}(?:Error|Exception)\b|\s|\[)"),  # worker-0: of pdsh
)
# At the end of a line: a progress bar may stand before it.
_TRACEBACK = re.compile(r"\bTraceback \(most recent call last\):\s{0,8}$")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,200}?(?:Error|Exception|Interrupt|Exit))(?::|$)")
_ANY_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,200})(?::|$)")
# As some metrics are printed: `MeanSquaredError: 0.25`.
_NUMBER = re.compile(r":\s{0,8}[-+]?[\d.]{1,40}(?:e[-+]?\d{1,4})?%?\s{0,8}$|:\s{0,8}(?:nan|inf)$")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")
_THROWN = re.compile(r"\s{0,8}what\(\):\s")
# Of glog (`[W1229 …`, `W0430 …`, `[I socket.cpp:…`, `…: W tensorflow/…]`), of NCCL, of Python's logging and warnings.
_BENIGN = re.compile(
    r"\[[WI](?:\d{3,4})? |^[WI]\d{4} |\d: [WI] \S{1,200}\] |\b(?:INFO|DEBUG|WARN|WARNING)\b|\b\w{0,60}Warning:"
)
# What shells and argparse say instead of raising anything.
_REFUSED = re.compile(
    r"[\w./-]{1,100}: error: (?:unrecognized arguments|the following arguments|argument |ambiguous option)"
    r"|[\w./-]{1,100}: (?:line \d{1,6}: )?[\w./-]{1,100}: command not found"
)
# Between two exceptions of which the first led to the second.
_CHAIN = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause of the following"
)
# What surrounds an error, and may be long: stacks, frames of tables, and what trackers print at their end.
_PART = re.compile(r"\s|[│╭╰]|frame #|[=*-]{3}|wandb: |$")
# `chain`: see above. `part`: of an error, or a warning. `ordinary`: any other output.
_Plain = Literal["chain", "part", "ordinary"]


def diagnose(lines: Sequence[str]) -> FailureCause | None:
    """The cause of a failure, by the last error in these lines; None where they tell of none."""
    secondary: FailureCause | None = None
    own: FailureCause | None = None
    ordinary, chained = 0, False
    for found in reversed(_judged(lines)):
        if found == "chain":
            chained = own is not None
        elif isinstance(found, FailureCause):
            if own is not None and not chained:
                return own
            if found.blame == "machine" or (own is not None and found.blame == "peer" and not _is_of_client(own)):
                return found  # By itself, or as what the script's exception was raised from.
            if found.blame == "peer":
                secondary = secondary or found
            own = own or (found if found.blame == "script" else None)
            ordinary, chained = 0, False
        elif found == "ordinary":
            ordinary += 1
            if ordinary > _ORDINARY_LINES:
                break
    return own or secondary


def _judged(lines: Sequence[str]) -> list[FailureCause | _Plain]:
    """What each line says of a failure. Of those that say nothing: what they are."""
    found: list[FailureCause | _Plain] = []
    inside = False
    for line in lines:
        text = _bare(line[:_LINE_CHARS])
        if _TRACEBACK.search(text):
            inside = True
            found.append("part")
            continue
        # A box is a traceback of `rich`, with lines of source code in it.
        if text.startswith(("│", "╭", "╰")) or (inside and _PART.match(text)):
            found.append("part")
            continue
        cause = _judge(text, raised=inside)
        inside = False
        found.append(cause or _plain(text))
    return found


def _plain(text: str) -> _Plain:
    if _CHAIN.match(text):
        return "chain"
    return "part" if _PART.match(text) or _BENIGN.search(text) else "ordinary"


def _bare(line: str) -> str:
    """The line without its colours and what launchers put in front of it."""
    line = _COLOUR.sub("", line)
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
    """`raised`: the line ends a traceback, so it names an exception whatever that is called."""
    exception = _EXCEPTION.match(text) or (_ANY_EXCEPTION.match(text) if raised else None)
    if exception is not None and (raised or not _NUMBER.match(text, exception.end(1))):
        return _judge_exception(exception[1], text)
    if _THROWN.match(text):
        return _match(text) or FailureCause("exception", "script", text.strip()[:_QUOTED_CHARS])
    if _BENIGN.search(text):
        return None
    found = _match(text)
    if found is None and _REFUSED.match(text):
        return FailureCause("refused", "script", text.strip()[:_QUOTED_CHARS])
    return found


def _judge_exception(name: str, text: str) -> FailureCause | None:
    kind = name.rpartition(".")[2]
    own = FailureCause("exception", "script", text.strip()[:_QUOTED_CHARS])
    if kind in _SCRIPT_TYPES:
        return own
    if kind in _WRAPPERS:
        return _match(text)
    if name.startswith(_CLIENTS):
        return own
    return _match(text) or own


def _is_of_client(cause: FailureCause) -> bool:
    return cause.line.startswith(_CLIENTS)


def _match(text: str) -> FailureCause | None:
    for pattern in PATTERNS:
        if pattern.regex.search(text):
            return FailureCause(pattern.name, pattern.blame, text.strip()[:_QUOTED_CHARS])
    return None
