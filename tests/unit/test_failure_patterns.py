"""What the end of a log says about a failure."""

from __future__ import annotations

import time

import pytest

from stoker.agent.exit_report import complete_exit
from stoker.core.failure_diagnosis import diagnose
from stoker.core.failure_patterns import PATTERNS
from stoker.external_jobs.failure_diagnosis import diagnose as diagnose_external
from stoker.model.log_entries import Waste
from stoker.model.node_facts import FailureCause
from tests.support.sim_data import make_exit


def blame(*lines: str) -> tuple[str, str] | None:
    found = diagnose(lines)
    return (found.name, found.blame) if found is not None else None


@pytest.mark.parametrize(
    ("name", "whose", "sample"),
    [(pattern.name, pattern.blame, sample) for pattern in PATTERNS for sample in pattern.samples],
)
def test_each_pattern_recognises_its_real_samples(name: str, whose: str, sample: str) -> None:
    assert blame(sample) == (name, whose)


@pytest.mark.parametrize(
    ("name", "sample"), [(pattern.name, sample) for pattern in PATTERNS for sample in pattern.others]
)
def test_no_pattern_recognises_what_only_looks_like_it(name: str, sample: str) -> None:
    found = diagnose([sample])
    assert found is None or found.name != name


def test_every_pattern_has_samples() -> None:
    assert all(pattern.samples for pattern in PATTERNS)
    excuses = {pattern.name for pattern in PATTERNS if pattern.blame != "script"}
    assert excuses == {"gpu", "nccl", "rendezvous", "io", "disk-full", "host-memory", "killed", "service"}


TIMEOUT = (
    "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880)",
    "[rank0]:[E ProcessGroupNCCL.cpp:635] [Rank 0] To avoid data inconsistency, we are taking the entire process down.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "  what():  [PG 0 Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE) ran for long",
    "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:525:",
    *(f"frame #{number}: <unknown function> + 0xe6793 (0x7f3257610793 in libstdc++.so.6)" for number in range(9)),
)
# Addresses and PIDs aside, as torchrun ends.
TORCHRUN = (
    "E0501 11:12:35.1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -6) local_rank: 0",
    "Traceback (most recent call last):",
    '  File "/usr/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=====================================================",
    "train.py FAILED",
    "-----------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  exitcode  : -6 (pid: 3431)",
    "  traceback : Signal 6 (SIGABRT) received by PID 3431",
    "=====================================================",
)
VALUE_ERROR = (
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 3, in <module>',
    "[rank1]:     load(cfg)",
    "[rank1]: ValueError: the learning rate is a fish",
)
OWN = ("exception", "script")


def test_a_collective_that_timed_out_is_not_the_scripts() -> None:
    assert blame(*TIMEOUT) == ("nccl", "peer")
    assert blame(*TIMEOUT, *TORCHRUN) == ("nccl", "peer")


def test_the_last_error_decides_not_a_warning_before_it() -> None:
    warned = "node0:155:170 [0] misc/socket.cc:441 NCCL WARN Call to connect returned Connection refused, retrying"
    assert blame(warned, *VALUE_ERROR) == OWN
    assert blame(warned, "maXid=3", *VALUE_ERROR, *TORCHRUN) == OWN
    assert blame("maXid=3") is None
    assert blame(warned) is None
    assert blame("RuntimeError: CUDA error: uncorrectable ECC error encountered", *VALUE_ERROR) == OWN
    assert blame(*VALUE_ERROR, "RuntimeError: CUDA error: uncorrectable ECC error encountered") == ("gpu", "machine")


def test_noise_of_ranks_that_lost_another_is_secondary_to_its_exception() -> None:
    assert blame(*VALUE_ERROR, *TIMEOUT, *TORCHRUN) == OWN
    assert blame(*VALUE_ERROR, "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.7]:41112") == OWN
    found = diagnose([*VALUE_ERROR, *TIMEOUT])
    assert found is not None and found.line == "ValueError: the learning rate is a fish"


def test_an_error_after_which_training_went_on_was_handled() -> None:
    went_on = [f"step {number} loss 0.5" for number in range(100)]
    assert blame(*VALUE_ERROR, *went_on, *TIMEOUT) == ("nccl", "peer")
    assert blame("OSError: [Errno 5] Input/output error: 'x'", *went_on) is None
    assert blame("OSError: [Errno 5] Input/output error: 'x'", *went_on[:3]) == ("io", "machine")


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: NCCL error threshold must be positive",
        "KeyError: 'Xid 79'",
        "AssertionError: No space left on device",
        "requests.exceptions.HTTPError: 404 Client Error: NCCL error for url: https://x/Connection reset by peer",
        "train.py: error: unrecognized arguments: --lr",
    ],
)
def test_an_exception_of_the_script_may_quote_anything(line: str) -> None:
    found = diagnose(["NCCL error", line])
    assert found is not None and found.blame == "script"


def test_an_exception_of_any_name_ends_a_traceback() -> None:
    raised = ("Traceback (most recent call last):", '  File "x.py", line 1, in f', "mylib.Oops: NCCL is fine")
    assert blame("NCCL error", *raised) == OWN
    assert blame("NCCL error", raised[-1]) == ("nccl", "peer"), "without a traceback it is any line"


def test_an_exception_that_another_led_to_is_judged_by_that_one() -> None:
    """As `torch.save` fails on a full disk."""
    first = ("Traceback (most recent call last):", "  File x", "OSError: [Errno 28] No space left on device", "")
    marker = ("During handling of the above exception, another exception occurred:", "")
    then = (
        "Traceback (most recent call last):",
        "  File y",
        "RuntimeError: [enforce fail at inline_container.cc:337] .",
    )
    assert blame(*first, *marker, *then) == ("disk-full", "machine")
    assert blame(*first, *then) == OWN, "it was handled before"
    middle = ("Traceback (most recent call last):", "  File z", "KeyError: 'x'", "")
    cause = "The above exception was the direct cause of the following exception:"
    assert blame(*first, *marker, *middle, cause, *then) == ("disk-full", "machine")
    assert blame(*middle, *marker, *then) == OWN
    found = diagnose([*middle, *marker, *then])
    assert found is not None and found.line.startswith("RuntimeError"), "the last one is quoted"


GLOG = "E0228 00:35:58.954000 724855 site-packages/torch/distributed/elastic/multiprocessing/api.py:732] "


@pytest.mark.parametrize(
    "prefix",
    [
        GLOG,
        "E0228 00:35:58.954000 torch/distributed/run.py:12] ",
        "[1,0]<stderr>:",
        "[1,mpirank:0,algo-1]<stderr>:",
        "worker-1: [rank3]: ",
        "[rank0]:" + GLOG,
        "0: ",
        "(RayTrainWorker pid=4009, ip=10.0.0.7) ",
    ],
)
def test_an_exception_is_found_behind_what_a_launcher_puts_before_it(prefix: str) -> None:
    """Its message quotes an error that would excuse it."""
    lines = (
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "ValueError: no NCCL error",
    )
    assert blame(*(prefix + line for line in lines)) == OWN


def test_colours_and_progress_bars_hide_no_exception() -> None:
    assert blame("\x1b[1;35mValueError\x1b[0m: \x1b[35mno NCCL error\x1b[0m") == OWN
    bar = "  0%|          | 0/100 [00:00<?, ?it/s]Traceback (most recent call last):"
    assert blame("NCCL error", bar, '  File "x.py", line 1, in f', "mylib.Oops: NCCL is fine") == OWN


def test_source_code_in_a_traceback_of_rich_is_no_error() -> None:
    frame = [f"│   {number} │   raise RuntimeError('NCCL error')  │" for number in range(60)]
    box = ("╭──── Traceback (most recent call last) ────╮", *frame, "╰────────────────────╯")
    assert blame(*box, "mylib failed") is None
    assert blame(*VALUE_ERROR, *box, "RuntimeError: Connection reset by peer") == OWN


def test_a_metric_that_is_called_an_error_is_none() -> None:
    for value in ("0.25", "1e-3", "nan", "12%", "-0.5"):
        assert blame(f"MeanSquaredError: {value}", *TIMEOUT) == ("nccl", "peer")
    assert blame("Traceback (most recent call last):", "  File x", "KeyError: 5", *TIMEOUT) == OWN


def test_a_connection_of_a_client_library_is_no_ranks_however_it_is_chained() -> None:
    """As `requests` tells of a server that closed the connection."""
    chain = ("", "During handling of the above exception, another exception occurred:", "")
    begin = ("Traceback (most recent call last):", '  File "x.py", line 1, in f')
    reset = (*begin, "ConnectionResetError: [Errno 104] Connection reset by peer")
    pool = (*begin, "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'reset'))")
    raised = (
        *begin,
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset'))",
    )
    assert blame(*reset, *chain, *pool, *chain, *raised) == ("service", "machine")
    refused = (*begin, "requests.exceptions.ConnectionError: (Caused by NewConnectionError: Connection refused)")
    assert blame(*reset, *chain, *refused) == OWN
    wrapped = (*begin, "RuntimeError: the collective failed")
    assert blame(*reset, *chain, *wrapped) == ("rendezvous", "peer")


def test_warnings_of_any_logger_are_none() -> None:
    assert blame("W0430 23:50:38.337000 134467 torch/distributed/x.py:851] Connection reset by peer") is None
    assert blame("2024-02-19 13:19:11.93: W tensorflow/core/x.cc:10] Input/output error, retrying") is None
    assert blame("2024-02-19 13:19:11.93: E tensorflow/core/x.cc:10] Input/output error") == ("io", "machine")


def test_the_end_of_a_launcher_that_was_asked_to_go_is_not_the_scripts() -> None:
    said = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3424 got signal: 15"
    assert blame(*TIMEOUT, "Traceback (most recent call last):", "  File x", said) == ("nccl", "peer")
    assert blame("Traceback (most recent call last):", "  File x", said) == ("killed", "peer")
    assert blame(*VALUE_ERROR, "Traceback (most recent call last):", "  File x", said) == OWN


def test_what_a_tracker_prints_at_its_end_hides_nothing() -> None:
    summary = [f"wandb: loss {number}" for number in range(90)]
    assert blame(*TIMEOUT, *summary) == ("nccl", "peer")


def test_a_worker_that_was_killed_is_told_by_its_launcher() -> None:
    killed = [line.replace("-6", "-9").replace("Signal 6 (SIGABRT)", "Signal 9 (SIGKILL)") for line in TORCHRUN]
    assert blame(*killed) == ("killed", "peer")
    assert blame(*VALUE_ERROR, *killed) == OWN


def test_a_hostile_log_costs_no_time() -> None:
    lines = [
        "[" * 5000,
        "a." * 100_000 + "Error",
        "x-" * 50_000 + ": ",
        "(" * 9999,
        "NCCL error in" + "x" * 99_999,
        "\r" * 20_000,
        "\x1b[0;" * 5000 + "\x1b]" * 5000,
    ] * 40
    began = time.process_time()
    diagnose(lines)
    assert time.process_time() - began < 5.0, "patterns that backtrack would take hours"


def test_a_training_job_of_others_is_judged_by_the_last_error_too() -> None:
    said = "AlgorithmError: , exit code: 1"
    assert diagnose_external(said, [*TIMEOUT], ()).blame == "machine"
    assert (
        diagnose_external(said, ["NCCL WARN socketFinalizeAccept: wrong type", *VALUE_ERROR], ()).blame == "unexplained"
    )
    quoted = 'AlgorithmError: ExecuteUserScriptError: ExitCode 1 ErrorMessage "RuntimeError: NCCL error in: x.cpp"'
    assert diagnose_external(quoted, [], ()).blame == "machine"


def test_the_line_that_decided_is_quoted_in_short() -> None:
    assert diagnose(["ValueError: " + "x" * 5000]) == FailureCause(
        "exception", "script", ("ValueError: " + "x" * 5000)[:300]
    )


def test_an_agent_finds_the_cause_behind_the_stacks_that_follow_it() -> None:
    """The exit keeps twenty lines for people; a crash of several processes prints more."""
    frames = tuple(f"frame #{number}: <unknown function> + 0x1" for number in range(60))
    lines = ("step 1", *TIMEOUT[:3], *frames)
    left = complete_exit(make_exit("failed", code=None, signal=6), None, None, lines, Waste())
    assert len(left.tail) == 20 and left.cause is not None and left.cause.name == "nccl"
    assert complete_exit(make_exit("succeeded", code=0), None, None, lines, Waste()).cause is None
