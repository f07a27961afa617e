"""The plan says what ignore files left out of the code, where a script may need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.plan_view import left_out_text
from stoker.submit import ignored_files
from stoker.submit.ignored_files import IgnoredFiles
from stoker.submit.pack_code import pack


def put(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def ignored(code: Path, known: tuple[Path, ...] = ()) -> tuple[IgnoredFiles, ...]:
    with pack(code, exclude=["checkpoints"], known=known) as packed:
        return packed.ignored


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """As nanoGPT has it."""
    folder = tmp_path / "code"
    put(folder / "train.py")
    put(folder / "data/shakespeare/train.bin", b"1" * 5000)
    put(folder / "data/shakespeare/val.bin", b"1" * 500)
    put(folder / ".gitignore", b"*.bin\n__pycache__/\n*.pyc\nvenv/\n")
    put(folder / "__pycache__/train.pyc", b"1" * 10**5)
    put(folder / "venv/lib/huge.bin", b"1" * 10**5)
    return folder


def test_a_dataset_that_git_ignores_is_told(code: Path) -> None:
    (found,) = ignored(code)
    assert (found.by, found.files, found.size) == (".gitignore", 2, 5500)
    assert found.largest[0] == ("data/shakespeare/train.bin", 5000)
    text = left_out_text(found)
    assert ".gitignore leaves out 2 files, 5.5 kB: data/shakespeare/train.bin (5.0 kB)" in text
    assert "`inputs`" in text and "!data/shakespeare/train.bin" in text


def test_the_line_that_is_advised_packs_it(code: Path) -> None:
    put(code / "big/a.npy", b"1" * 9000)
    put(code / ".gitignore", b"*.bin\nbig\n")
    (found,) = ignored(code)
    assert found.largest[0] == ("big/", 9000)
    put(code / ".stokerignore", f"{found.take_back}\n".encode())
    with pack(code) as packed:
        assert "big/a.npy" in packed.names
    (rest,) = ignored(code)
    put(code / ".stokerignore", f"{found.take_back}\n{rest.take_back}\n".encode())
    with pack(code) as packed:
        assert "data/shakespeare/train.bin" in packed.names


def test_what_the_job_has_as_an_input_is_no_news(code: Path) -> None:
    put(code / ".gitignore", b"data\n")
    assert ignored(code) != ()
    assert ignored(code, known=(code / "data",)) == ()


def test_what_was_kept_out_on_purpose_is_a_plain_line(code: Path) -> None:
    put(code / ".gitignore", b"")
    put(code / ".stokerignore", b"data\nvenv\n")
    (found,) = ignored(code)
    assert found.by == ".stokerignore" and not found.by_accident
    assert left_out_text(found) == ".stokerignore leaves out 2 files, 5.5 kB: data/ (5.5 kB)"


def test_products_of_runs_and_tools_are_no_news(tmp_path: Path) -> None:
    code = tmp_path / "code"
    put(code / "train.py")
    put(code / ".gitignore", b"wandb\nlogs\n*.log\nout\n.cache\ncheckpoints\nbuild\n*.egg-info\n")
    for name in ("wandb/a", "logs/b", "x.log", "out/ckpt.pt", ".cache/c", "checkpoints/d", "build/e", "a.egg-info/f"):
        put(code / name, b"1" * 1000)
    assert ignored(code) == ()


MADE_BY_PROGRAMS = (
    *(".cache", "x.egg-info", "x.log", "x.o", "x.pyc", "x.swp", "x.tmp", "x~", "Thumbs.db", "__pycache__", "build"),
    *("dist", "env", "htmlcov", "node_modules", "site-packages", "venv"),
)
MADE_BY_RUNS = (
    *("checkpoint-10", "ckpt_last", "lightning_logs", "log", "logs", "mlruns", "out", "out-shakespeare", "output"),
    *("outputs", "result", "results", "runs", "tmp", "wandb"),
)


def weighed(root: Path, *names: str) -> tuple[IgnoredFiles, ...]:
    return ignored_files.summarize_ignored(root, [(name, ".gitignore") for name in names])


@pytest.mark.parametrize("name", MADE_BY_PROGRAMS)
def test_what_programs_make_again_is_never_told(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, b"1" * 2_000_000)
    put(tmp_path / "data" / name, b"1" * 2_000_000)
    put(tmp_path / "data" / "own", b"1")
    assert weighed(tmp_path, name, f"data/{name}") == ()
    (found,) = weighed(tmp_path, "data")
    assert (found.files, found.size) == (1, 1)


@pytest.mark.parametrize("name", MADE_BY_RUNS)
def test_what_runs_made_is_told_once_it_is_large(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, b"1" * 999_999)
    assert weighed(tmp_path, name) == ()
    put(tmp_path / name, b"1" * 1_000_000)
    (found,) = weighed(tmp_path, name)
    assert (found.products, found.by_accident, found.largest) == (True, False, ((name, 1_000_000),))


def test_the_largest_are_named_and_all_are_counted(tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 40, "c": 30, "d": 20, "e": 40, "empty": 0}
    for name, size in sizes.items():
        put(tmp_path / name, b"1" * size)
    (found,) = weighed(tmp_path, *sizes)
    assert (found.files, found.size, found.whole) == (5, 140, True)
    assert found.largest == (("b", 40), ("e", 40), ("c", 30)) and found.take_back == "!b"
    for name in "1234":
        (tmp_path / name).symlink_to("a")
    (links,) = weighed(tmp_path, "1", "2", "3", "4")
    assert (links.links, links.files, links.take_back) == (("1", "2", "3"), 0, "")


def test_inside_of_ignored_folders_neither_links_nor_environments_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "data/own", b"1" * 5)
    put(tmp_path / "data/python/pyvenv.cfg", b"1")
    put(tmp_path / "data/python/lib.so", b"1" * 100)
    (tmp_path / "data/link").symlink_to(tmp_path / "data/own")
    (found,) = weighed(tmp_path, "data", "never-there")
    assert (found.files, found.size) == (1, 5)


def test_as_many_as_are_counted_are_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_files, "MOST_COUNTED", 3)
    for n in range(2):
        put(tmp_path / f"data/{n}")
    (found,) = weighed(tmp_path, "data")
    assert (found.files, found.whole) == (2, True)
    for n in range(2, 5):
        put(tmp_path / f"data/{n}")
    (found,) = weighed(tmp_path, "data")
    assert (found.files, found.whole) == (3, False)


def test_counting_ends(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_files, "MOST_COUNTED", 10)
    put(code / ".gitignore", b"many\n")
    for number in range(50):
        put(code / f"many/{number}.jpg", b"1" * 100)
    (found,) = ignored(code)
    assert not found.whole
    assert "at least 10 files" in left_out_text(found)


def test_large_products_of_runs_are_a_plain_line(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may begin with the weights in them."""
    monkeypatch.setattr(ignored_files, "_LEAST_REPORTED_BYTES", 5000)
    put(code / ".gitignore", b"results\n*.bin\nlogs\nvenv\n")
    put(code / "results/pretrained.pt", b"1" * 7000)
    data, products = ignored(code)
    assert data.by_accident and not products.by_accident
    assert left_out_text(products) == ".gitignore leaves out 1 file, 7.0 kB: results/ (7.0 kB)"


def test_a_link_to_a_dataset_is_told(code: Path, tmp_path: Path) -> None:
    put(tmp_path / "disk/train.npy", b"1" * 9000)
    put(code / ".gitignore", b"images\n/data\nvenv\n")
    (code / "images").symlink_to(tmp_path / "disk")
    (found,) = ignored(code)
    assert ".gitignore leaves out 2 files, 5.5 kB: data/ (5.5 kB) and the link images." in left_out_text(found)
    put(code / ".gitignore", b"images\nvenv\n")
    (alone,) = ignored(code)
    assert left_out_text(alone) == (
        ".gitignore leaves out the link images. If the script needs what they point to, name that under `inputs`"
    )
