"""An environment is made once, and made anew where it would not be the same."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import installing_machine
import pytest
from installing_machine import Bench

from stoker.agent.environment import cpu_level, local_cache, store_cache
from stoker.agent.environment.archive import list_folder
from stoker.model.errors import SetupFailed
from stoker.store.base import open_store
from tests.support.package_index import make_wheel

pytestmark = pytest.mark.slow

# Fixtures that all tests of installing share.
index, image, bench = installing_machine.index, installing_machine.image, installing_machine.bench


def test_it_is_made_once(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    first = bench.install()
    before = len(bench.index.requests)
    assert bench.install() == first
    assert len(bench.index.requests) == before
    bench.write("requirements.txt", "click # changed\n")
    assert bench.install() != first


def test_one_that_was_not_used_for_long_is_removed_when_another_is_made(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    first = Path(bench.install()["VIRTUAL_ENV"])
    bench.leave()
    long_ago = time.time() - local_cache.UNUSED_FOR_S - 60
    for path in bench.environments.glob("*.*"):
        os.utime(path, (long_ago, long_ago))
    bench.write("requirements.txt", "click # changed\n")
    second = Path(bench.install()["VIRTUAL_ENV"])
    assert second.is_dir() and not first.exists()


def test_the_next_machine_restores_it(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install(system_packages=False)
    bench.runs(environ, "python", "-c", "import lightning, torch")
    bench.wait_for_uploads()
    assert "is stored for the next time" in bench.said[-1]
    shutil.rmtree(bench.environments)
    before = len(bench.index.requests)
    assert bench.install(system_packages=False) == environ
    assert bench.said[0] == "running restore of requirements.txt"
    assert "requirements.txt: restored from the store (0 MB)" in bench.said
    assert len(bench.index.requests) == before
    assert bench.version(environ, "lightning") == "2.0"
    # Compiled by the first training, and good for the second.
    (compiled,) = Path(environ["VIRTUAL_ENV"]).glob("lib/*/site-packages/__pycache__/lightning.*.pyc")
    made_at = compiled.stat().st_mtime_ns
    bench.runs(environ, "python", "-c", "import lightning")
    assert compiled.stat().st_mtime_ns == made_at


def test_a_damaged_copy_is_told_made_anew_and_replaced(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install(system_packages=False)
    bench.wait_for_uploads()
    kept = bench.root / "store/work/environments"
    (largest,) = sorted(kept.glob("*/" + "?" * 64), key=lambda path: path.stat().st_size)[-1:]
    largest.write_bytes(largest.read_bytes()[:-5])
    shutil.rmtree(bench.environments)
    assert bench.install(system_packages=False) == environ
    told = "requirements.txt: the stored environment cannot be used: a part of it does not match its digest"
    assert f"{told}; building it again" in bench.said
    assert bench.version(environ, "lightning") == "2.0"
    bench.wait_for_uploads()
    shutil.rmtree(bench.environments)
    assert bench.install(system_packages=False) == environ
    assert "requirements.txt: restored from the store (0 MB)" in bench.said


def test_a_copy_whose_python_does_not_run_is_made_anew(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install(system_packages=False)
    bench.wait_for_uploads()
    # Kept under the right name, and made for another processor.
    folder = Path(environ["VIRTUAL_ENV"])
    (folder / "bin/python").unlink()
    (folder / "bin/python").write_bytes(b"\x7fELF of another kind")
    (folder / "bin/python").chmod(0o755)
    cached = store_cache.StoreCache(open_store((bench.root / "store").as_uri()), "job-abcd")
    found = cached.find(folder.name)
    assert found is not None
    cached.discard(store_cache.DamagedCopy("", *cached.keys_of(found)))
    assert cached.upload(folder.name, found.manifest.platform, folder, list_folder(folder))
    shutil.rmtree(bench.environments)
    assert bench.install(system_packages=False) == environ
    assert any("its Python does not run here; building it again" in line for line in bench.said)
    assert bench.version(environ, "lightning") == "2.0"


# ── Changed by a training ─────────────────────────────────────────────────────────────────────────────────────────────


CHANGED = "requirements.txt: its environment was modified after it was built"


@pytest.mark.parametrize("local", [True, False])
def test_what_a_training_installed_is_not_there_for_the_next_job(bench: Bench, local: bool) -> None:
    bench.local = local
    bench.write("requirements.txt", "numpy==1.0\n")
    environ = bench.install(python=sys.executable, system_packages=False)
    bench.wait_for_uploads()
    bench.runs(environ, "pip", "install", "--quiet", "numpy==2.0", "click")
    assert bench.version(environ, "numpy") == "2.0"
    bench.leave()
    assert bench.install(python=sys.executable, system_packages=False) == environ
    assert bench.said[0] == f"{CHANGED}, so it is built again"
    restored = "requirements.txt: restored from the store (0 MB)" in bench.said
    assert restored is not local
    assert bench.version(environ, "numpy") == "1.0"
    assert not list(Path(environ["VIRTUAL_ENV"]).glob("lib/*/site-packages/click*"))
    bench.leave()
    bench.install(python=sys.executable, system_packages=False)
    assert bench.said[0] == "requirements.txt: its environment exists already"


def test_what_somebody_else_trains_with_is_left_to_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cache, "_IN_USE_AFTER_S", 0.2)
    bench.write("requirements.txt", "numpy==1.0\n")
    theirs = bench.install(python=sys.executable, system_packages=False)
    bench.runs(theirs, "pip", "install", "--quiet", "numpy==2.0")
    ours = bench.install(python=sys.executable, system_packages=False)
    assert bench.said[0] == f"{CHANGED}, and is in use, so this node gets its own"
    assert Path(ours["VIRTUAL_ENV"]).is_relative_to(bench.root / "node")
    assert (bench.version(ours, "numpy"), bench.version(theirs, "numpy")) == ("1.0", "2.0")


def test_one_of_a_nodes_own_is_not_kept_for_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs name another place than its key says."""
    monkeypatch.setattr(local_cache, "_IN_USE_AFTER_S", 0.2)
    bench.local = False
    bench.write("requirements.txt", "numpy==1.0\n")
    theirs = bench.install(python=sys.executable, system_packages=False)
    bench.runs(theirs, "pip", "install", "--quiet", "numpy==2.0")
    bench.install(python=sys.executable, system_packages=False)
    bench.wait_for_uploads()
    assert not any("is stored for the next time" in line for line in bench.said)


# ── Settings, code and processors ─────────────────────────────────────────────────────────────────────────────────────


def test_what_variables_say_counts(bench: Bench, tmp_path: Path) -> None:
    bench.write("requirements.txt", "lightning\n")
    first = bench.install()
    assert bench.version(first, "lightning") == "2.0"
    pins = tmp_path / "pins.txt"
    pins.write_text("lightning<2\n")
    bench.env = {"UV_CONSTRAINT": str(pins)}
    second = bench.install()
    assert bench.version(second, "lightning") == "1.0"
    pins.write_text("lightning>1\n")
    assert bench.version(bench.install(), "lightning") == "2.0"
    # How it is fetched is nothing to what is fetched.
    bench.env = {"UV_HTTP_TIMEOUT": "99", "UV_CONCURRENT_DOWNLOADS": "2"}
    assert bench.install() == first


def test_what_the_users_own_settings_say_counts(bench: Bench, tmp_path: Path) -> None:
    bench.write("requirements.txt", "lightning\n")
    bench.env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert bench.version(bench.install(), "lightning") == "2.0"
    (tmp_path / "config/uv").mkdir(parents=True)
    (tmp_path / "config/uv/uv.toml").write_text('exclude-newer = "2001-01-01"\nresolution = "lowest"\n')
    with pytest.raises(SetupFailed, match=r"no versions? of lightning"):
        bench.install()


def test_a_package_of_the_code_is_never_taken_for_an_older_one(bench: Bench) -> None:
    bench.write("requirements.txt", "--no-index --find-links wheels\ninner\n")
    for number in ("1", "2"):
        made = make_wheel("inner", "3.0", files={"inner.py": f"__version__ = '{number}'\n".encode()})
        (bench.code / "wheels").mkdir(exist_ok=True)
        (bench.code / "wheels" / made.filename).write_bytes(made.data)
        bench.digest = number * 64
        # Each job has its own folder, and uv knows wheels by their place.
        shutil.rmtree(bench.root / "cache", ignore_errors=True)
        assert bench.version(bench.install(), "inner") == number


def test_code_for_another_processor_is_not_restored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write("requirements.txt", "click\n")
    first = bench.install()
    monkeypatch.setattr(cpu_level, "level", lambda: "v9")
    assert bench.install() != first
