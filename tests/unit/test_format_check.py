"""Files that say by themselves whether they are whole: cut off anywhere, they are found out."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import Clock

from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.checkpoints.format_check import UNKNOWN, CachedFormatChecks, check_format
from stoker.agent.checkpoints.unreadable_files import FileUnreadable

numpy = pytest.importorskip("numpy")


def torch_file(path: Path) -> None:
    import torch  # Takes seconds: only the processes that run these tests pay for it.

    model = torch.nn.Linear(40, 30)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 40)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "path": Path("x")}, path)


def safetensors_file(path: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}, "__metadata__": {"format": "pt"}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(40))


def hdf5_file(path: Path, version: int = 0, size: int = 2048) -> None:
    """A superblock as the library writes it, and something behind it."""
    if version == 0:
        head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + struct.pack("<HHI", 4, 16, 0)
        head += struct.pack("<QQQQ", 0, 2**64 - 1, size, 2**64 - 1)
    else:
        head = b"\x89HDF\r\n\x1a\n" + bytes([3, 8, 8, 0]) + struct.pack("<QQQQ", 0, 2**64 - 1, size, 48)
    path.write_bytes(head.ljust(size, b"d"))


def json_file(path: Path) -> None:
    path.write_text(json.dumps({"global_step": 200, "log_history": [{"loss": 0.5, "text": 'a "quoted" {'}]}, indent=2))


def npy_file(path: Path) -> None:
    numpy.save(path, numpy.zeros((7, 5), dtype="float32"))


def npz_file(path: Path) -> None:
    numpy.savez(path, a=numpy.zeros(50), b=numpy.ones(50))


def pickle_file(path: Path) -> None:
    path.write_bytes(pickle.dumps({"weights": list(range(1000))}))


MAKERS: list[tuple[str, Callable[[Path], None], str]] = [
    ("ckpt.pt", torch_file, "whole"),
    ("model.safetensors", safetensors_file, "whole"),
    ("model.h5", hdf5_file, "plausible"),
    ("trainer_state.json", json_file, "whole"),
    ("a.npy", npy_file, "whole"),
    ("a.npz", npz_file, "plausible"),
    ("a.pkl", pickle_file, "plausible"),
]


@pytest.mark.parametrize(("name", "make", "state"), MAKERS)
def test_a_file_that_is_cut_off_is_broken(tmp_path: Path, name: str, make: Callable[[Path], None], state: str) -> None:
    path = tmp_path / name
    make(path)
    assert check_format(path).state == state
    data = path.read_bytes()
    whole = 0
    for end in range(64, len(data), max(1, len(data) // 97)):
        path.write_bytes(data[:end])
        check = check_format(path)
        assert check.state != "whole", end
        whole += check.state != "broken"
        assert check.state != "broken" or check.reason
    # A pickle that is cut off may end in the byte that ends pickles.
    assert whole == 0 or name == "a.pkl"


def test_a_torch_file_whose_writer_gave_up_lacks_tensors(tmp_path: Path) -> None:
    """SystemExit in the middle of `torch.save`: the archive is closed properly, without the tensors to come."""
    torch_file(tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as source:
        names = [entry.filename for entry in source.infolist()]
        storages = [name for name in names if "/data/" in name]
        for lost in (storages[-1:], storages):
            with zipfile.ZipFile(tmp_path / "cut.pt", "w") as target:
                for name in names:
                    if name not in lost:
                        target.writestr(name, source.read(name))
            check = check_format(tmp_path / "cut.pt")
            assert check.state == "broken" and "missing" in check.reason
        with zipfile.ZipFile(tmp_path / "short.pt", "w") as target:
            for name in names:
                data = source.read(name)
                target.writestr(name, data[:-4] if name == storages[0] else data)
    assert check_format(tmp_path / "short.pt").state == "broken"


def test_a_pickle_in_an_archive_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (Path.touch, (tmp_path / "ran",))

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as target:
        target.writestr("archive/data.pkl", pickle.dumps(Evil()))
        target.writestr("archive/version", "3")
    check_format(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_the_form_of_an_archive_is_what_is_in_it(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", a=numpy.zeros(5), b=numpy.zeros(5))
    numpy.savez(tmp_path / "b.npz", a=numpy.ones(5), b=numpy.ones(5))
    numpy.savez(tmp_path / "c.npz", a=numpy.zeros(5))
    numpy.savez(tmp_path / "d.npz", a=numpy.zeros(5), b=numpy.zeros(3))
    a, b, c, d = (check_format(tmp_path / f"{name}.npz").form for name in "abcd")
    assert a == b and len({a, c, d}) == 3


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("notes.txt", b"{ not json"),
        ("log.json", b'{"step": 1}\n{"step": 2}\n{"ste'),
        ("commented.json", b"// no JSON, but complete\n{}"),
        ("empty.json", b""),
        ("empty.pt", b""),
        ("model.bin", bytes(range(256)) * 10),
        ("ints.bin", struct.pack("<10Q", 100, 123, *range(8))),
        ("legacy.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),
        ("text.h5", b"this is no HDF5"),
    ],
)
def test_what_no_format_explains_is_unknown(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert check_format(tmp_path / name).state == "unknown"


def test_an_archive_without_members_is_no_save(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ckpt.pt", "w"):
        pass
    found = check_format(tmp_path / "ckpt.pt")
    assert (found.state, found.reason) == ("broken", "its zip archive is empty")


def test_hdf5_says_when_it_was_not_closed(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    hdf5_file(path, version=3)
    assert check_format(path).state == "plausible"
    data = bytearray(path.read_bytes())
    data[11] = 1
    path.write_bytes(data)
    assert "never closed" in check_format(path).reason
    path.write_bytes(bytes(4096))
    assert check_format(path).state == "broken"


def test_a_file_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert check_format(tmp_path / "nothing.pt").state == "unknown"


def test_a_zip_of_nonsense_is_no_error(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr("archive/data.pkl", b"\x80\x02nonsense")
    (tmp_path / "a.pt").write_bytes(data.getvalue())
    assert check_format(tmp_path / "a.pt").state == "plausible"


# Every kind of tensor that torch saves, and the bytes of one element.
WIDTHS = {
    "Double": 8,
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
    "ComplexDouble": 16,
    "ComplexFloat": 8,
    "Untyped": 1,
}


class _Stored:
    """A tensor's storage, which torch writes as a reference."""

    def __init__(self, *words: object) -> None:
        self.words = words


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: object) -> object:
        return thing.words if isinstance(thing, _Stored) else None


def storage_file(path: Path, kind: str, count: int, size: int, **more: bytes) -> None:
    """As `torch.save` writes one tensor of so many elements in so many bytes."""
    buffer = io.BytesIO()
    storage = type(f"{kind}Storage", (), {"__module__": "torch"})
    module = types.ModuleType("torch")
    setattr(module, storage.__name__, storage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", module)
        _Pickler(buffer, protocol=2).dump({"weight": _Stored("storage", storage, "0", "cpu", count)})
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("archive/data.pkl", buffer.getvalue())
        target.writestr("archive/data/0", b"x" * size)
        target.writestr("archive/version", "3")
        for name, data in more.items():
            target.writestr(f"archive/{name}.pkl", data)


@pytest.mark.parametrize("kind", WIDTHS)
def test_a_tensor_has_as_many_bytes_as_its_kind_says(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.pt"
    storage_file(path, kind, 3, 3 * WIDTHS[kind])
    assert check_format(path).state == "whole"
    storage_file(path, kind, 3, 3 * WIDTHS[kind] - 1)
    check = check_format(path)
    assert check.state == "broken"
    assert f"tensor 0 has {3 * WIDTHS[kind] - 1} of {3 * WIDTHS[kind]} bytes in it" in check.reason


def test_a_tensor_of_a_kind_that_is_not_known_proves_nothing(tmp_path: Path) -> None:
    storage_file(tmp_path / "a.pt", "Float8", 3, 1)
    assert check_format(tmp_path / "a.pt").state != "broken"
    # TorchScript keeps its tensors elsewhere.
    storage_file(tmp_path / "b.pt", "Float", 3, 1, constants=b"x")
    assert check_format(tmp_path / "b.pt").state != "broken"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"a": 1', "broken"),
        ('{"a": "x', "broken"),
        ('{"a": "\\"', "broken"),
        ("[[1, 2]", "broken"),
        ('{"a": "[", "b": 1} x', "unknown"),
        ('{"a": "]"', "broken"),
        ('{"a": 1}\n{"a": 2', "unknown"),
        ("no json\n[1", "broken"),
        ("no json", "unknown"),
        ("]", "unknown"),
    ],
)
def test_json_is_broken_where_it_is_cut_off_and_nowhere_else(tmp_path: Path, text: str, state: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert check_format(path).state == state


def superblock(version: int, width: int, ends_at: int, flags: int = 0) -> bytes:
    """The first 64 bytes of an HDF5 file: its version, the width of its addresses, and where it ends."""
    head = b"\x89HDF\r\n\x1a\n" + bytes([version])
    if version in (0, 1):
        head += bytes([0, 0, 0, 0, width, width, 0]) + struct.pack("<HHI", 4, 16, 0)
        head += b"\x20\0\0\0" if version == 1 else b""
    else:
        head += bytes([width, width, flags])
    return (head + bytes(width) + b"\xff" * width + ends_at.to_bytes(width, "little")).ljust(64, b"d")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_hdf5_of_every_version_ends_where_its_header_says(tmp_path: Path, version: int, width: int) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(superblock(version, width, 300).ljust(300, b"d"))
    assert check_format(path).state == "plausible"
    path.write_bytes(superblock(version, width, 301).ljust(300, b"d"))
    check = check_format(path)
    assert (check.state, check.reason) == ("broken", "its HDF5 header says 301 bytes, and there are 300")


def test_only_hdf5_of_version_3_tells_whether_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(superblock(2, 8, 64, flags=1))
    assert check_format(path).state == "plausible"
    path.write_bytes(superblock(3, 8, 64, flags=4))
    assert check_format(path).state == "plausible"
    path.write_bytes(superblock(3, 8, 64, flags=5))
    assert check_format(path).state == "broken"


@pytest.mark.parametrize("data", [superblock(4, 8, 999), superblock(2, 3, 999), superblock(0, 8, 999)[:47]])
def test_an_hdf5_header_that_cannot_be_read_proves_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.h5").write_bytes(data)
    assert check_format(tmp_path / "model.h5").state == "unknown"


@pytest.mark.parametrize(
    ("name", "size", "state"),
    [
        ("a.h5", 100, "broken"),
        ("a.HDF5", 100, "broken"),
        ("a.he5", 8, "broken"),
        ("a.h5", 0, "unknown"),
        ("a.bin", 100, "unknown"),
    ],
)
def test_hdf5_whose_header_was_never_written_is_known_by_its_name(
    tmp_path: Path, name: str, size: int, state: str
) -> None:
    (tmp_path / name).write_bytes(bytes(size))
    check = check_format(tmp_path / name)
    assert check.state == state
    assert check.reason == ("its HDF5 header was never written" if state == "broken" else "")


def npy(descr: str, shape: str, data: bytes, *, major: int = 1, length: int | None = None) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode("latin1")
    length = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([major, 0]) + struct.pack("<H" if major == 1 else "<I", length) + header + data


@pytest.mark.parametrize("major", [1, 2, 3])
@pytest.mark.parametrize(
    ("descr", "shape", "size"),
    [("'<f4'", "(3, 5)", 60), ("'<U3'", "(2,)", 24), ("'?'", "(7,)", 7), ("'|S10'", "()", 10), ("'<i8'", "(0,)", 0)],
)
def test_an_array_has_as_many_bytes_as_its_header_says(
    tmp_path: Path, major: int, descr: str, shape: str, size: int
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy(descr, shape, bytes(size), major=major))
    assert check_format(path).state == "whole"
    path.write_bytes(npy(descr, shape, bytes(size + 1), major=major))
    assert check_format(path).state == "unknown", "several arrays may lie in one file"
    if size:
        path.write_bytes(npy(descr, shape, bytes(size - 1), major=major))
        have = path.stat().st_size
        check = check_format(path)
        assert (check.state, check.reason) == (
            "broken",
            f"its numpy header says {have + 1} bytes, and there are {have}",
        )


def test_an_array_whose_header_tells_no_size_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy("[('a', '<f4')]", "(2,)", b""))
    assert check_format(path).state == "unknown"
    path.write_bytes(npy("'|O'", "(2,)", b""))
    assert check_format(path).state == "unknown"
    path.write_bytes(npy("'<f4'", "(2,)", bytes(8), major=2, length=17 * 1024 * 1024))
    assert check_format(path).state == "unknown", "a header so large is not read"
    path.write_bytes(npy("'<f4'", "(2,)", bytes(8), length=1000))
    check = check_format(path)
    assert (check.state, check.reason) == ("broken", "its numpy header is cut off")


def safetensors(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"__metadata__": {"data_offsets": "no tensor"}}, 0),
        ({"a": {"data_offsets": [0, 8]}, "b": {"data_offsets": [8, 12]}}, 12),
        ({"b": {"data_offsets": [8, 12]}, "a": {"data_offsets": [0, 8]}}, 12),
    ],
)
def test_tensors_end_where_the_header_says(tmp_path: Path, header: object, size: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(header, bytes(size)))
    assert check_format(path).state == "whole"
    path.write_bytes(safetensors(header, bytes(size + 1)))
    assert check_format(path).state == "unknown"
    have = len(safetensors(header, bytes(size)))
    path.write_bytes(safetensors(header, bytes(size))[: have - 1])
    check = check_format(path)
    cut = f"its safetensors header says {have} bytes, and there are {have - 1}"
    assert (check.state, check.reason) == ("broken", cut if size else "its safetensors header is cut off")


def test_a_safetensors_header_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({}, b""))
    assert check_format(path).state == "whole"
    header = {"a": {"data_offsets": [0, 10**9]}}
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 17 * 1024 * 1024) + json.dumps(header).encode().ljust(17 * 1024 * 1024))
    assert check_format(path).state == "unknown"
    path.write_bytes(struct.pack("<Q", 100_000_000) + b'{"a')
    assert check_format(path).reason == "its safetensors header is cut off"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b'{"a')
    assert check_format(path).state == "unknown", "a number so large is no length of a header"


@pytest.mark.parametrize("name", ["a.pkl", "a.PICKLE", "a.joblib", "a.pt"])
def test_a_pickle_is_known_by_its_name_and_ends_in_a_dot(tmp_path: Path, name: str) -> None:
    data = pickle.dumps([1, 2], protocol=4)
    by_name = name != "a.pt"
    (tmp_path / name).write_bytes(data)
    assert check_format(tmp_path / name).state == ("plausible" if by_name else "unknown")
    (tmp_path / name).write_bytes(data[:-1])
    assert check_format(tmp_path / name).reason == ("its pickle has no end" if by_name else "")
    (tmp_path / name).write_bytes(pickle.dumps([1, 2], protocol=0)[:-1])
    assert check_format(tmp_path / name).state == "unknown", "an old pickle is not told from any text"


def test_a_document_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[" + b" " * (16 * 1024 * 1024 - 2) + b"]")
    assert check_format(path).state == "whole"
    path.write_bytes(b"[" + b" " * (16 * 1024 * 1024 - 1) + b"]")
    assert check_format(path).state == "unknown"


def test_an_archive_whose_members_lie_behind_its_end_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("a", b"x" * 50)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 20 : at + 24] = struct.pack("<I", len(data))
    path.write_bytes(data)
    assert check_format(path).state == "plausible"
    data[at + 20 : at + 24] = struct.pack("<I", len(data) + 1)
    path.write_bytes(data)
    assert check_format(path).reason == "its zip archive refers to data behind its end"


def test_a_torch_file_whose_first_part_is_damaged_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    storage_file(path, "Float", 3, 12)
    data = bytearray(path.read_bytes())
    at = data.index(b"weight")
    data[at] ^= 1
    path.write_bytes(data)
    assert check_format(path).reason == "the first part of its zip archive is damaged"


def test_what_is_not_torchs_archive_is_not_read_as_one(tmp_path: Path) -> None:
    """A folder more, two of them, or one that is too large: then members and sizes alone count."""
    for names in (["data.pkl"], ["a/b/data.pkl"], ["a/data.pkl", "b/data.pkl"]):
        with zipfile.ZipFile(tmp_path / "a.pt", "w") as target:
            for name in names:
                target.writestr(name, pickle.dumps({}))
        assert check_format(tmp_path / "a.pt").state == "plausible", names
    for size, state in ((8 * 1024 * 1024, "whole"), (8 * 1024 * 1024 + 1, "plausible")):
        with zipfile.ZipFile(tmp_path / "a.pt", "w") as target:
            target.writestr("a/data.pkl", pickle.dumps({}).ljust(size))
        assert check_format(tmp_path / "a.pt").state == state


def test_a_file_that_could_not_be_read_is_tried_again_after_a_minute_and_sooner_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x")
    (file,) = scan(tmp_path, ()).values()
    clock = Clock()
    checks = CachedFormatChecks(tmp_path, check_format, clock)
    error = FileUnreadable("a.log", "its disk fails", may_pass=True)
    for ended, pause_s in ((False, 60.0), (True, 2.0)):
        if ended:
            checks.read_again()
        checks.note_unreadable(file, error)
        clock.s += pause_s - 0.1
        assert checks.check(file).unreadable
        clock.s += 0.2
        assert checks.check(file) == UNKNOWN
