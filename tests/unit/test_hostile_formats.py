"""Files made to take all memory or time of the agent: each format check has a bound, and such a file is unknown.

Each check runs in a process of its own, whose memory and time are limited: without the bound it would stop the tests.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stoker.agent.checkpoints import format_check, storage_references
from stoker.agent.checkpoints.format_check import check_format
from stoker.agent.checkpoints.storage_references import read_storages

# Above what the process takes without any check.
MOST_MB = 250
MOST_CPU_S = 20
_CHECK = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from pathlib import Path
from stoker.agent.checkpoints.format_check import check_format
peak_kb = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = peak_kb()
found = check_format(Path(sys.argv[1]))
print(json.dumps([found.state, (peak_kb() - before) / 1024]))
"""
MB = 1024 * 1024
# A text, and instructions that put it into the memo as 0.
_TEXT = b"\x80\x02K\x01q\x00"
# Of tuples of this depth, each of three times the one before, a text of all of them never ends.
_DEEP = 60


def nested() -> bytes:
    return _TEXT + b"".join(
        b"(" + b"h" + bytes([i]) + b"h" + bytes([i]) * 1 + b"h" + bytes([i]) + b"tq" + bytes([i + 1])
        for i in range(_DEEP)
    )


# Made where they are needed: together they are hundreds of megabytes.
PICKLES: dict[str, Callable[[], bytes]] = {
    "a reference of nested tuples": lambda: nested() + b"Q.",
    "a key of nested tuples": lambda: nested() + b"}h" + bytes([_DEEP]) + b"K\x01s.",
    "a storage of nested tuples": lambda: b"\x80\x02(X\x07\0\0\0storage" + nested()[2:] + b"X\x01\0\0\0ah\x00h\x00tQ.",
    "a set of nested tuples": lambda: nested() + b"\x8f(h" + bytes([_DEEP]) + b"\x90.",
    "an integer of megabytes": lambda: (
        b"\x80\x02\x8b" + struct.pack("<I", 8 * MB - 20) + b"\x7f" * (8 * MB - 20) + b"."
    ),
    "a text of megabytes": lambda: b"\x80\x02X" + struct.pack("<I", 8 * MB - 20) + b"a" * (8 * MB - 20) + b".",
    "a length behind the end": lambda: b"\x80\x02\x8e" + b"\xff" * 8 + b".",
    "the same again": lambda: b"\x80\x02]" + b"2" * (8 * MB - 20) + b".",
    "lists": lambda: b"\x80\x02" + b"]" * (8 * MB - 20) + b".",
    "marks": lambda: b"\x80\x02" + b"(" * (8 * MB - 20) + b".",
    "a memo of one value": lambda: b"\x80\x04K\x01" + b"\x94" * (8 * MB - 20) + b".",
    "a memo of many": lambda: b"\x80\x04" + b"K\x01\x94" * 1_900_000 + b".",
    "texts": lambda: b"\x80\x04" + b"\x8c\x04abcd" * 1_300_000 + b".",
    "classes": lambda: b"\x80\x02" + b"ca\nb\n" * 1_600_000 + b".",
    "tuples in tuples": lambda: b"\x80\x02)" + b"\x85" * (8 * MB - 20) + b".",
    "large tuples": lambda: b"\x80\x02" + b"(" + b"N" * 4000 + b"".join(b"t2(2" for _ in range(1000)) + b".",
}


def pickled(data: Callable[[], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as target:
            target.writestr("archive/data.pkl", data())

    return make


def compressed(method: int) -> Callable[[Path], None]:
    """A pickle of a few bytes, by its directory, that take twice the allowed memory when they are unpacked."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as target, target.open("archive/data.pkl", "w") as member:
            for _ in range(2 * MOST_MB):
                member.write(bytes(MB))
        data = bytearray(path.read_bytes())
        at = data.rindex(b"PK\x01\x02")
        data[at + 24 : at + 28] = struct.pack("<I", 1000)
        path.write_bytes(data)

    return make


def directory(entries: int, *, name: bytes = b"a") -> Callable[[Path], None]:
    """An archive of which only the directory is there."""

    def make(path: Path) -> None:
        one = b"PK\x01\x02" + struct.pack("<6H3I5H2I", *[20, 20, 0, 0, 0, 33], 0, 0, 0, len(name), *[0] * 6) + name
        head = b"PK\x03\x04" + bytes(60)
        with path.open("wb") as file:
            file.write(head)
            for begin in range(0, entries, 10_000):
                file.write(one * min(10_000, entries - begin))
            size = len(one) * entries
            # The directory as an archive of any size has it, and where it begins.
            where = file.tell()
            file.write(b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, entries, entries, size, len(head)))
            file.write(b"PK\x06\x07" + struct.pack("<IQI", 0, where, 1))
            file.write(b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))

    return make


def claimed_directory(path: Path) -> None:
    """A directory of gigabytes, in a file that has as many, all of them holes."""
    size = 3 << 30
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(size)
        file.seek(size)
        file.write(b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, 9, 9, size - 4, 4))
        file.write(b"PK\x06\x07" + struct.pack("<IQI", 0, size, 1))
        file.write(b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))


def npy(header: Callable[[], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        made = header()
        path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(made)) + made)

    return make


def safetensors(header: Callable[[], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        made = header()
        path.write_bytes(struct.pack("<Q", len(made)) + made)

    return make


def plain(data: Callable[[], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(data())

    return make


HOSTILE: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{name: ("a.pt", pickled(data)) for name, data in PICKLES.items()},
    "a deflated pickle": ("a.pt", compressed(zipfile.ZIP_DEFLATED)),
    "a bzip2 pickle": ("a.pt", compressed(zipfile.ZIP_BZIP2)),
    "an archive of millions of members": ("a.npz", directory(2_000_000)),
    "an archive of as many members as are read": ("a.npz", directory(89_000)),
    "an archive of long names": ("a.npz", directory(60, name=b"\x01" * 65_000)),
    "a directory of gigabytes": ("a.npz", claimed_directory),
    "an array header of brackets": ("a.npy", npy(lambda: b"[" * 60_000)),
    "an array header of signs": ("a.npy", npy(lambda: b"-" * 60_000 + b"1")),
    "an array header of lists": ("a.npy", npy(lambda: b"[" + b"[]," * 5_000_000 + b"]")),
    "an array of a long shape": (
        "a.npy",
        npy(lambda: b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 1400 + b",), }"),
    ),
    "an array header of many commas": (
        "a.npy",
        npy(lambda: b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"," * 60_000),
    ),
    "a tensor header of lists": ("a.safetensors", safetensors(lambda: b'{"a":[' + b"[]," * 5_000_000 + b"[]]}")),
    "a tensor header of brackets": ("a.safetensors", safetensors(lambda: b'{"a":' + b"[" * 15_000_000)),
    "a tensor header of spaces": (
        "a.safetensors",
        safetensors(lambda: b'{"data_offsets"' + b' "data_offsets":  [' * 800_000),
    ),
    "a tensor header of ranges": ("a.safetensors", safetensors(lambda: b'{"' + b'"data_offsets":[0,0]' * 800_000)),
    "a document of brackets": ("a.json", plain(lambda: b"[" * 900_000)),
    "a document of lists": ("a.json", plain(lambda: b"[" + b"[]," * 5_000_000 + b"[]]")),
    "a document of as many lists as are read": ("a.json", plain(lambda: b"[" + b"[]," * 490_000 + b"[]]")),
    "a document of numbers": ("a.json", plain(lambda: b"[" + b"1.5," * 4_000_000 + b"1]")),
    "a document of one number": ("a.json", plain(lambda: b"1" * 16 * MB)),
    "a document of texts": ("a.json", plain(lambda: b"{" + b",".join(b'"%d":""' % i for i in range(900_000)) + b"}")),
    "a document of escapes": ("a.json", plain(lambda: b'"' + b"\\n" * 8_000_000 + b'"')),
    "a document of lines": ("a.json", plain(lambda: b"\n" * 16 * MB)),
    "a document of quotes": ("a.json", plain(lambda: b'"' * 3_900_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_no_file_takes_the_memory_or_the_time_of_the_agent(tmp_path: Path, case: str) -> None:
    name, make = HOSTILE[case]
    make(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(tmp_path / name), str(MOST_CPU_S)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-500:]
    state, took_mb = json.loads(done.stdout)
    assert state in ("unknown", "plausible", "whole"), "nothing that is merely large is condemned"
    assert took_mb < MOST_MB


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    assert check_format(tmp_path / "a.json").state == "unknown"


@pytest.mark.parametrize(
    "data",
    [
        *[(b"\x93NUMPY\x01\x00\x76\x00{" + bytes(9))[:length] for length in range(16)],
        *[(b"PK\x03\x04" + bytes(9))[:length] for length in range(12)],
        *[b"\x89HDF\r\n\x1a\n"[:length] + bytes([3]) * (length == 8) for length in range(9)],
        b"\x93NUMPY\x01\x00\x03\x00[1]",
        b"\x93NUMPY\x01\x00\x03\x00)))",
        *[
            struct.pack("<Q", len(text)) + text
            for text in (b'{"a":"x"}', b'{"a":{"data_offsets":["x",1]}}', b'{"a":[]}', b'{""')
        ],
    ],
)
def test_no_bytes_make_a_check_raise(tmp_path: Path, data: bytes) -> None:
    for name in ("a.bin", "a.npy", "a.json", "a.h5", "a.pkl"):
        (tmp_path / name).write_bytes(data)
        check_format(tmp_path / name)


def test_an_archive_of_a_later_version_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("a", b"x")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 6] = 99
    path.write_bytes(data)
    assert check_format(path).state == "unknown"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "shift_jis"])
def test_a_document_of_another_encoding_is_not_condemned(tmp_path: Path, encoding: str) -> None:
    """Here a byte of a letter is a bracket, or a quote."""
    (tmp_path / "a.json").write_bytes('{"a": "字字字∢ゼ"}'.replace("∢", "∢" * (encoding[:3] == "utf")).encode(encoding))
    assert check_format(tmp_path / "a.json").state == "unknown"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-be"])
def test_a_document_whose_bytes_are_ascii_by_chance_is_not_condemned(tmp_path: Path, encoding: str) -> None:
    """A byte of this letter is a quote, which nothing closes."""
    (tmp_path / "a.json").write_bytes('{"a": "∀"}'.encode(encoding))
    assert check_format(tmp_path / "a.json").state == "unknown"


# ── The pickle of a torch archive ─────────────────────────────────────────────────────────────────────────────────────


def reference(key: bytes = b"0", count: bytes = b"K\x03", kind: bytes = b"ctorch\nFloatStorage\n") -> bytes:
    text = b"X\x07\0\0\0storage" + kind + b"X" + struct.pack("<I", len(key)) + key + b"X\x03\0\0\0cpu" + count
    return b"(" + text + b"tQ"


def test_references_are_found_whatever_is_around_them() -> None:
    found = read_storages(
        b"\x80\x02}(X\x01\0\0\0a" + reference() + b"X\x01\0\0\0b" + reference(b"1", b"M\x00\x01") + b"u."
    )
    assert found == {"0": ("FloatStorage", 3), "1": ("FloatStorage", 256)}
    assert read_storages(b"\x80\x04}.") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02}",
        b"\x80\x02Q.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02" + reference(count=b"J\xff\xff\xff\xff") + b".",
        b"\x80\x02" + reference(count=b"\x8a\x09" + b"\x01" * 9) + b".",
        b"\x80\x02" + reference(key=b"k" * 300) + b".",
        b"\x80\x02" + reference(kind=b"X\x01\0\0\0F") + b".",
        b"\x80\x02\x82\x01.",
        b"\x80\x02t.",
        b"\x80\x020.",
        b"\x80\x02\x87.",
        b"\x80\x02u.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x02c" + b"a" * 300 + b"\nb\n.",
        b"I1\n.",
    ],
)
def test_a_pickle_that_cannot_be_followed_proves_nothing(data: bytes) -> None:
    assert read_storages(data) is None


def test_a_pickle_is_followed_up_to_a_number_of_instructions_and_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = b"\x80\x02K\x01" + b"q\x00q\x01q\x02" + b"."
    monkeypatch.setattr(storage_references, "_MAX_INSTRUCTIONS", 6)
    monkeypatch.setattr(storage_references, "_MAX_REMEMBERED", 3)
    assert read_storages(remembered) == {}
    monkeypatch.setattr(storage_references, "_MAX_INSTRUCTIONS", 5)
    assert read_storages(remembered) is None, "its end is not reached"
    monkeypatch.setattr(storage_references, "_MAX_INSTRUCTIONS", 6)
    monkeypatch.setattr(storage_references, "_MAX_REMEMBERED", 2)
    assert read_storages(remembered) is None


def test_a_key_that_is_no_key_of_torch_is_not_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as target:
        target.writestr("archive/data.pkl", b"\x80\x02" + reference(b"\n[stoker] all is well") + b".")
    assert check_format(tmp_path / "a.pt").state == "plausible"


def test_a_compressed_pickle_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("archive/data.pkl", b"\x80\x02" + reference() + b".")
    assert check_format(tmp_path / "a.pt").state == "plausible"


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_file_at_a_bound_is_still_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    for length, state in ((64 * 1024, "whole"), (64 * 1024 + 1, "unknown")):
        npy(partial(header.ljust, length))(path)
        with path.open("ab") as file:
            file.write(bytes(24))
        assert check_format(path).state == state
    path = tmp_path / "a.json"
    for count, state in ((999_999, "whole"), (1_000_000, "unknown")):
        path.write_bytes(b"[" + b",".join([b"1"] * count) + b",1]")
        assert check_format(path).state == state
    for depth, state in ((200, "whole"), (201, "unknown")):
        path.write_bytes(b"[" * depth + b"]" * depth)
        assert check_format(path).state == state


def test_an_archive_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as target:
        for number in range(50):
            target.writestr(f"{number}", b"x")
    assert check_format(path).state == "plausible"
    monkeypatch.setattr(format_check, "_MAX_ZIP_DIRECTORY", 1000)
    assert check_format(path).state == "unknown", "its directory has more bytes"
    cut_off = tmp_path / "b.npz"
    cut_off.write_bytes(path.read_bytes()[:900])
    assert check_format(cut_off).state == "broken"
    cut_off.write_bytes(path.read_bytes()[:1500])
    assert check_format(cut_off).state == "unknown", "its directory may be anywhere in the last bytes"


def test_an_array_that_no_disk_holds_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for rows, state in ((2**56, "broken"), (2**61, "unknown")):
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % rows
        npy(lambda header=header: header)(path)
        assert check_format(path).state == state


def test_tensors_with_a_gap_between_them_prove_nothing(tmp_path: Path) -> None:
    """By the specification there is none: a part of the header was lost."""
    path = tmp_path / "a.safetensors"
    safetensors(lambda: b'{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[8,12]}}')(path)
    with path.open("ab") as file:
        file.write(bytes(12))
    assert check_format(path).state == "unknown"
