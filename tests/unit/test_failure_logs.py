"""Whole logs of failures, as PyTorch, JAX, TensorFlow, their launchers and clients write them: the verdict of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.agent.exit_report import CAUSE_BYTES, CAUSE_LINES, complete_exit
from stoker.agent.logs.log_pump import last_lines
from stoker.core.failure_diagnosis import diagnose
from stoker.model.log_entries import Waste
from tests.support.sim_data import make_exit

LOGS = Path(__file__).with_name("failure_logs.txt")

FRAMES = "\n".join(
    f"frame #{n}: c10d::ProcessGroupNCCL::watchdogHandler() + 0x89 (0x7f in libtorch_cuda.so)" for n in range(8)
)
CUDA = """CUDA kernel errors might be asynchronously reported at some other API call, so the stack may be wrong.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
TIMED_OUT = "[Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4) ran for 1800004 milliseconds"
WATCHDOG = f"""[rank6]:[E626 16:48:25.441526059 ProcessGroupNCCL.cpp:1896] [PG ID 0 Rank 6] terminated: {TIMED_OUT}
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635:
{FRAMES}

terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 6] Process group watchdog thread terminated with exception: {TIMED_OUT}
{FRAMES}"""
TORCHRUN = """W0901 05:20:14.015000 5475 torch/distributed/elastic/multiprocessing/api.py:900] Ending process 5721
E0901 05:20:48.238000 5475 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: CODE) local_rank: 1
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
====================================
train.py FAILED
------------------
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 3669031)
  traceback : Signal 9 (SIGKILL) received by PID 3669031
------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-09-04_10:10:23
  exitcode  : CODE (pid: 5722)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
===================================="""
STEPS = "".join(f"Epoch 0:   6%|██  | {n}/500 [6:28:43<94:39:17, 1.37it/s, loss=2.6]\r" for n in range(30))
OPTIONS = ", ".join(f"'--some_quite_long_option_{n}', '/export/App/training_platform/{n}'" for n in range(60))
KNOWN = {
    "traceback": 'Traceback (most recent call last):\n  File "/x/train.py", line 102, in f\n    x = self.conv(x)',
    "frames": FRAMES,
    "cuda": CUDA,
    "watchdog": WATCHDOG,
    "steps": STEPS,
    "options": OPTIONS,
    "torchrun 1": TORCHRUN.replace("CODE", "1"),
    "torchrun -6": TORCHRUN.replace("CODE", "-6"),
}


def expanded(line: str) -> Iterator[str]:
    """The lines that one of the file stands for. What stands before `{traceback}` stands before all of its lines."""
    many = re.match(r"\*(\d+) ", line)
    if many is not None:
        line = line[many.end() :]
    for _ in range(int(many[1]) if many is not None else 1):
        before, _, name = line.partition("{")
        name, _, after = name.partition("}")
        if name not in KNOWN:
            yield line
        elif name in ("options", "steps"):
            yield from expanded(f"{before}{KNOWN[name]}{after}")
        else:
            first, *more = KNOWN[name].split("\n")
            rank = before if before.startswith("[rank") else ""
            yield from (before + first, *(rank + each for each in more))


def logs() -> Iterator[tuple[str, str, list[str]]]:
    title, wanted, found = "", "", []
    for line in [*LOGS.read_text().split("\n"), "=== : "]:
        if line.startswith("=== "):
            if title:
                yield title, wanted, found
            title, _, wanted = line.removeprefix("=== ").partition(": ")
            found = []
        elif title:
            bytes_ = line.replace("\\e", "\x1b").replace("\\r", "\r").replace("\\t", "\t")
            found += expanded(bytes_)


def verdict(lines: list[str] | tuple[str, ...]) -> str:
    found = diagnose(lines)
    return f"{found.name} {found.blame}" if found is not None else "-"


CASES = list(logs())


@pytest.mark.parametrize(("title", "wanted", "lines"), CASES, ids=[title for title, _, _ in CASES])
def test_each_log_gets_its_verdict(title: str, wanted: str, lines: list[str], tmp_path: Path) -> None:
    """In a reader's hands, and as an agent reads it from its file, after an hour of training and before its own end."""
    assert verdict(lines) == wanted
    trained = [f"step {n} loss 0.5" for n in range(300)]
    path = tmp_path / "train.log"
    end = "[stoker] saving what is there: the store did not answer at once (Connection reset by peer)"
    path.write_text("\n".join([*trained, *lines, end]) + "\n")
    assert verdict(last_lines(path, 4000, 1024 * 1024)) == wanted, title


@pytest.mark.parametrize(("title", "wanted", "lines"), CASES, ids=[title for title, _, _ in CASES])
def test_what_is_benign_before_it_changes_nothing(title: str, wanted: str, lines: list[str]) -> None:
    benign = [
        "node0:155:170 [0] misc/socket.cc:441 NCCL WARN Call to connect returned Connection refused, retrying",
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/x/config.json",
        "maXid=3",
        "[W426 16:56:01.83 TCPStore.cpp:347] [c10d] TCP client failed - retrying (try=6): Connection reset by peer",
    ]
    assert verdict([*benign, *lines]) == wanted, title


def test_workers_that_torchrun_ended_itself_excuse_nothing() -> None:
    """It ends the others by SIGKILL where they do not leave, whatever the first one failed of."""
    assert verdict(TORCHRUN.replace("CODE", "1").split("\n")) == "-"
    assert verdict(TORCHRUN.replace("CODE", "-9").split("\n")) == "killed peer"


def test_lines_of_others_between_a_traceback_and_its_exception_are_no_exception() -> None:
    begin = ("Traceback (most recent call last):", '  File "x.py", line 1, in f')
    lost = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited"
    for between in ("done", "Saving:", "epoch: 3", "model.safetensors: 45%|██ "):
        assert verdict((*begin, between, lost)) == "nccl peer"
    assert verdict((*begin, "zlib.error: Error -3 while decompressing", lost)) == "exception script"


def test_a_long_stack_hides_no_cause(tmp_path: Path) -> None:
    """Eight ranks that lost a ninth print more than 100 KiB of frames."""
    own = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    frame = "frame #1: " + "c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f in libc10.so) " * 3
    path = tmp_path / "train.log"
    path.write_text("\n".join([own, *([WATCHDOG, *[frame] * 60] * 16)]))
    assert path.stat().st_size > 200 * 1024
    left = complete_exit(make_exit("failed", code=1), None, None, last_lines(path, CAUSE_LINES, CAUSE_BYTES), Waste())
    assert left.cause is not None and left.cause.name == "gpu-memory"
    assert len(left.tail) == 20
