"""How long it takes until a job's packages are there: the first time, the second time, and by pip."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from bench.figures import Figure, Measurement, Size
from bench.sandbox import Sandbox, sandbox
from stoker.agent.environment.archive import list_folder
from stoker.agent.environment.store_cache import StoreCache
from stoker.store.base import open_store
from tests.support.package_index import Wheel, make_wheel, package_index

WHEELS = Path(__file__).parent / "out" / "wheels"
PACKAGES = Path(__file__).parent / "packages.txt"
LIMIT_S = 600.0
# The short form installs this package, which needs another; both are made for it.
_SMALL = (make_wheel("small", "1.0", requires=("smaller",)), make_wheel("smaller", "1.0"))
# From nothing, and each time so many that find what the first of their round made.
ROUNDS, SECONDS = 3, 2

_BEGINS = re.compile(r"^(\S+ \S+) INFO \S+: requirements.txt: finding out", re.MULTILINE)
_ENDS = re.compile(r"^(\S+ \S+) INFO \S+: attempt ", re.MULTILINE)


def environments(size: Size) -> dict[str, float]:
    """Twenty packages and what they need: real wheels from an index on loopback, with empty caches, on `local`.

    `env_restore_ratio`: from the first look at requirements.txt to the start of the training in a second job, over the
    same in the first, both by their agents' logs; on `local` an environment stays where it was made, so that nothing is
    copied. Three rounds from empty caches, each with one first and two second jobs, and the medians of both: a second
    job is so short that every hiccup of the computer shows. `env_vs_pip_ratio`: the first one over `python -m venv` and
    `pip install` by hand right after it, from the same index; pip compiles everything, uv leaves that to the training.
    `env_fetch_ratio`, without a target: what a machine of a cloud does the second time, fetching the environment from a
    store (a folder here) and writing all its files, over the first one. An index on loopback is quicker than any other,
    which flatters the first set-up and pip.
    """
    with sandbox() as place, package_index(*(_SMALL if size.short else _wheels())) as index:
        settings = {
            "UV_DEFAULT_INDEX": index.url,
            "UV_CACHE_DIR": str(place.root / "uv-cache"),
            "PIP_INDEX_URL": index.url,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_CACHE_DIR": str(place.root / "pip-cache"),
        }
        kept = {name: value for name, value in place.env.items() if not name.startswith(("UV_", "PIP_"))}
        place.env = kept | settings
        place.script("train.py", size.choose("import numpy, transformers\n", "import small, smaller\n"))
        place.script("requirements.txt", size.choose(PACKAGES.read_text(encoding="utf-8"), "small\n"))
        firsts_s, seconds_s = [], []
        for _ in range(size.choose(ROUNDS, 1)):
            # As on a computer that never had these packages.
            for emptied in (place.home / "environments", place.root / "uv-cache"):
                shutil.rmtree(emptied, ignore_errors=True)
            firsts_s.append(_set_up_s(place))
            seconds_s += [_set_up_s(place) for _ in range(size.choose(SECONDS, 1))]
        fetch_s = _fetch_s(place)
        pip_s = _pip_s(place)
    first_s = statistics.median(firsts_s)
    return {
        "env_restore_ratio": statistics.median(seconds_s) / first_s,
        # Pip comes right after the last one: whatever else the computer does, it does to both.
        "env_vs_pip_ratio": firsts_s[-1] / pip_s,
        "env_fetch_ratio": fetch_s / firsts_s[-1],
        "env_first_s": first_s,
    }


def _wheels() -> tuple[Wheel, ...]:
    wheels = tuple(Wheel(path.name, path.read_bytes()) for path in sorted(WHEELS.glob("*.whl")))
    if not wheels:
        raise FileNotFoundError(f"{WHEELS} has no wheels; `sh scripts/need-wheels.sh python3` fetches them")
    return wheels


def _set_up_s(place: Sandbox) -> float:
    job = place.detach("--", "python", "train.py")
    place.finished(job, LIMIT_S)
    (said,) = place.home.glob(f"nodes/*/{job}-*/agent.log")
    text = said.read_text(encoding="utf-8")
    begins, ends = _BEGINS.search(text), _ENDS.search(text)
    if begins is None or ends is None:
        raise RuntimeError(f"the agent of {job} said nothing about its set-up:\n{text[-2000:]}")
    return (_time(ends[1]) - _time(begins[1])).total_seconds()


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007 - two of the same clock


def _fetch_s(place: Sandbox) -> float:
    (made,) = [path for path in (place.home / "environments").iterdir() if path.is_dir()]
    cache = StoreCache(open_store((place.root / "other-store").as_uri()), "bench")
    cache.upload("bench", "here", made, list_folder(made))
    began_s = time.monotonic()
    found = cache.find("bench")
    assert found is not None
    cache.restore(found, "bench", "here", place.root / "restored")
    return time.monotonic() - began_s


def _pip_s(place: Sandbox) -> float:
    """A new virtual environment, and pip in it."""
    folder = place.root / "by-hand"
    began_s = time.monotonic()
    place.run(sys.executable, "-m", "venv", str(folder))
    done = subprocess.run(
        [str(folder / "bin/pip"), "install", "--quiet", "-r", "requirements.txt"],
        cwd=place.code,
        env=place.env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return time.monotonic() - began_s


MEASUREMENTS = (
    Measurement(
        (
            Figure("env_restore_ratio", "×", 0.1),
            Figure("env_vs_pip_ratio", "×", 0.3),
            Figure("env_fetch_ratio", "×"),
            Figure("env_first_s", "s"),
        ),
        environments,
    ),
)
