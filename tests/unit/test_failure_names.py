"""Names by which the last line of a traceback is judged: of programs, of launchers and of client libraries."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

from stoker.core.failure_diagnosis import diagnose

BEGIN = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>')
# Words that excuse a script, wherever they are no quotation.
QUOTED = "uncorrectable ECC error"

PROGRAMS_OWN: list[type[BaseException]] = [
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileExistsError,
    FileNotFoundError,
    ImportError,
    IndentationError,
    IndexError,
    IsADirectoryError,
    json.JSONDecodeError,
    KeyError,
    LookupError,
    MemoryError,
    ModuleNotFoundError,
    NameError,
    NotADirectoryError,
    NotImplementedError,
    OverflowError,
    PermissionError,
    RecursionError,
    StopIteration,
    SyntaxError,
    TypeError,
    UnboundLocalError,
    UnicodeDecodeError,
    UnicodeEncodeError,
    pickle.UnpicklingError,
    ValueError,
    ZeroDivisionError,
]


def instance(kind: type[BaseException]) -> BaseException:
    if issubclass(kind, json.JSONDecodeError):
        return kind(QUOTED, "{", 0)
    if issubclass(kind, UnicodeDecodeError):
        return kind("utf-8", b"x", 0, 1, QUOTED)
    if issubclass(kind, UnicodeEncodeError):
        return kind("utf-8", "x", 0, 1, QUOTED)
    return kind(QUOTED)


def verdict(*lines: str) -> str:
    found = diagnose(lines)
    return f"{found.name} {found.blame}" if found is not None else "-"


@pytest.mark.parametrize("kind", PROGRAMS_OWN, ids=lambda kind: kind.__name__)
def test_an_exception_that_only_programs_raise_excuses_nothing_by_what_it_quotes(kind: type[BaseException]) -> None:
    said = traceback.format_exception_only(kind, instance(kind))[-1].strip()
    assert QUOTED in said
    assert verdict(*BEGIN, said) == "exception script"
    assert verdict(*BEGIN, f"RuntimeError: {QUOTED}") == "gpu machine"


def test_a_setting_that_a_model_refuses_is_the_programs_own() -> None:
    assert verdict(*BEGIN, f"pydantic_core._pydantic_core.ValidationError: {QUOTED}") == "exception script"


@pytest.mark.parametrize(
    "said",
    [
        "subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "KeyboardInterrupt",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 1",
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 34 got a signal",
        "SystemExit: 1",
    ],
)
def test_an_exception_that_passes_on_the_end_of_another_process_leaves_the_verdict_to_that_ones_words(
    said: str,
) -> None:
    assert verdict("RuntimeError: NCCL error", *BEGIN, said) == "nccl peer"
    assert verdict(f"RuntimeError: {QUOTED}", *BEGIN, said) == "gpu machine"
    assert verdict(*BEGIN, said) == "-"


@pytest.mark.parametrize(
    "name",
    [
        "aiobotocore.session.Failure",
        "aiohttp.client_exceptions.ClientOSError",
        "azure.core.exceptions.ServiceRequestError",
        "boto3.exceptions.S3UploadFailedError",
        "botocore.exceptions.ConnectionClosedError",
        "fsspec.exceptions.FSTimeoutError",
        "gcsfs.retry.HttpError",
        "google.auth.exceptions.TransportError",
        "http.client.BadStatusLine",
        "httpcore.ConnectError",
        "httpx.ConnectError",
        "huggingface_hub.errors.HfHubHTTPError",
        "mlflow.exceptions.MlflowException",
        "requests.exceptions.ConnectionError",
        "s3transfer.exceptions.TransferNotDoneError",
        "urllib.error.URLError",
        "urllib3.exceptions.ProtocolError",
        "wandb.errors.CommError",
    ],
)
def test_a_connection_that_a_client_library_lost_is_no_lost_rank(name: str) -> None:
    """The same words, of a collective, excuse the script: another rank went away."""
    assert verdict(*BEGIN, f"{name}: Connection reset by peer") == "exception script"
    assert verdict(*BEGIN, "mesh.Oops: Connection reset by peer") == "rendezvous peer"
    # Outside a traceback too, where its name has no usual end.
    assert verdict("NCCL error", f"{name.rpartition('.')[0]}.Oops: nothing") == "exception script"
    reset = (*BEGIN, "ConnectionResetError: [Errno 104] Connection reset by peer", "")
    then = ("During handling of the above exception, another exception occurred:", "")
    assert verdict(*reset, *then, *BEGIN, f"{name}: x") == "exception script"


def test_a_line_that_is_too_long_is_judged_by_its_beginning_and_its_end() -> None:
    long = "x" * 5000
    assert verdict(f"RuntimeError: {QUOTED} {long}") == "gpu machine"
    assert verdict(f"RuntimeError: {long} {QUOTED}") == "gpu machine"
    assert verdict(f"RuntimeError: {long} {QUOTED} {long}") == "exception script"
    whole = f"RuntimeError: {'x' * 1700} {QUOTED} "
    assert verdict(whole.ljust(2000, "y")) == "gpu machine"


def test_escapes_do_not_count_for_the_length_of_a_line() -> None:
    coloured = "\x1b[31m" * 400 + f"RuntimeError: {QUOTED}"
    assert verdict(coloured + " " + "y" * 1900) == "gpu machine"


def test_of_a_progress_bar_only_its_last_states_are_read() -> None:
    """An error between them is found; one long before its end was handled."""
    error = f"RuntimeError: {QUOTED}"
    states = [f"{number}%" for number in range(60)]
    assert verdict("\r".join([*states, error, *states[:10]])) == "gpu machine"
    assert verdict("\r".join([error, *states])) == "-"


def test_an_error_is_handled_after_more_than_forty_ordinary_lines() -> None:
    error = f"RuntimeError: {QUOTED}"
    assert verdict(error, *["step"] * 40) == "gpu machine"
    assert verdict(error, *["step"] * 41) == "-"


def test_ordinary_lines_are_counted_from_the_last_error_that_still_counts() -> None:
    lost = "RuntimeError: Connection reset by peer"
    assert verdict("ValueError: x", *["step"] * 30, lost, *["step"] * 30) == "exception script"


def test_a_traceback_that_was_ignored_ends_with_its_own_exception() -> None:
    """What follows it is read as ever."""
    ignored = ("Exception ignored in: <function f>", *BEGIN, f"RuntimeError: {QUOTED}")
    assert verdict(*ignored) == "-"
    assert verdict(*ignored, *BEGIN, f"RuntimeError: {QUOTED}") == "gpu machine"
    assert verdict(*ignored, "step", *BEGIN, "ValueError: x") == "exception script"


def test_the_end_of_a_thread_yields_to_an_error_above_it() -> None:
    thread = ("Exception in thread Thread-3 (_pump):", *BEGIN, f"RuntimeError: {QUOTED}")
    assert verdict(*thread) == "gpu machine"
    assert verdict("RuntimeError: Input/output error", *thread) == "io machine"
    assert verdict("RuntimeError: Input/output error", *thread, *BEGIN, f"RuntimeError: {QUOTED}") == "gpu machine"


def test_torchruns_list_of_the_others_ends_at_the_root_cause() -> None:
    killed = "  exitcode  : -9 (pid: 3431)"
    assert verdict("Failures:", killed) == "-"
    assert verdict("Other Failures:", killed) == "-"
    assert verdict("Failures:", "Root Cause (first observed failure):", killed) == "killed peer"


def test_a_traceback_in_torchruns_table_is_indented_as_a_whole() -> None:
    table = (
        "Root Cause (first observed failure):",
        "  traceback : Traceback (most recent call last):",
        '    File "train.py", line 3, in <module>',
        "      step()",
    )
    assert verdict("NCCL error", *table, "  mylib.Oops: NCCL is fine") == "exception script"
    # Behind it lines are what they are.
    assert verdict(*table, "  mylib.Oops: x", *["step"] * 41, *BEGIN, "  RuntimeError: no", "done") == "-"
