"""Provide every input of a job on this machine, according to its mode. May be repeated."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from stoker.agent.inputs import shard_list
from stoker.agent.inputs.cache import CacheEntry, InputInUse, prune
from stoker.agent.inputs.download import InputDownload, size_text, time_text
from stoker.agent.inputs.mount import ActiveMount, NotMountable, mount
from stoker.agent.inputs.source import InputListing, InputSource, Shard, list_files, local_path
from stoker.agent.node import AgentNode
from stoker.model import keys
from stoker.model.errors import NoCredentials, SetupFailed, StokerError, StoreUnavailable, UserError
from stoker.model.spec import Input
from stoker.providers.base import HasSagemakerTree
from stoker.store.base import Meta, ObjectChanged
from stoker.store.parallel import run_watched
from stoker.store.safe_extraction import Extraction

T = TypeVar("T")

# A source that changes all the time is not a data set.
_MAX_CHANGES = 5
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_CREDENTIALS_S = 60.0
# A list of files that the nodes have divided cannot change later.
_FIXED_LIST = "the nodes divide the files that the first node found: leave them unchanged, and submit again"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Inputs:
    """The inputs of one node. `cache_root` is the folder of cached copies.

    `check` is called continuously, and may raise; `on_wait` too, while another node fetches the same input.
    """

    def __init__(
        self,
        node: AgentNode,
        check: Callable[[], None],
        *,
        on_wait: Callable[[], None] = lambda: None,
        cache_root: Path | None = None,
    ) -> None:
        self._node = node
        self._cache_root = cache_root or node.inputs
        self._private_root = node.paths.inputs
        self._mounts = node.paths.mounts
        self._shard = Shard(node.config.rank, node.config.nodes)
        self._say = node.say
        # Paths of this machine that the training must see.
        self.paths: list[Path] = []
        self._mounted: list[ActiveMount] = []
        self._check = check
        self._on_wait = on_wait

    def provide(self, inputs: Mapping[str, Input]) -> dict[str, str]:
        """Return the location of each input: a folder, a file, or for `stream` the URL itself.

        Raises SetupFailed, which names the input.
        """
        where = {}
        for name, wanted in inputs.items():
            try:
                where[name] = self._locate(name, wanted)
            except SetupFailed:
                raise
            except (NotMountable, StokerError) as error:
                # A store that does not answer never gets here: requests are repeated until it answers.
                raise SetupFailed(f"inputs.{name}: {error}", user=True) from error
            except OSError as error:
                raise SetupFailed(f"inputs.{name}: {_disk_text(error)}", user=True) from error
        prune(self._cache_root)
        return where

    def abort(self) -> None:
        """Abort all mounts, so that no process waits for them. They are unusable then. Repeating is harmless."""
        for mounted in self._mounted:
            mounted.abort()

    def _locate(self, name: str, wanted: Input) -> str:
        if wanted.mode == "stream":
            return wanted.source
        path = self._brought(name, wanted) or self._fetch(name, wanted)
        self.paths.append(path)
        return str(path)

    def _fetch(self, name: str, wanted: Input) -> Path:
        shard = self._shard if wanted.shard and self._shard.nodes > 1 else None
        path = local_path(wanted.source)
        if path is not None:
            return self._use_in_place(name, Path(path), shard)
        say = partial(self._say_about, name)
        source = InputSource(wanted.source, say)
        if wanted.mode == "mount":
            return self._mount(name, source)
        if shard is not None:
            return self._copy_shard(name, source, shard, say)
        for _ in range(_MAX_CHANGES):
            listing = self._ask(source.list, say)
            try:
                return self._copy(name, listing, say)
            except ObjectChanged as error:
                say(f"{error}: it changed while it was fetched; listing the files again")
        raise SetupFailed(f"inputs.{name}: {wanted.source} keeps changing while it is fetched", user=True)

    def _brought(self, name: str, wanted: Input) -> Path | None:
        """Return where the machine's cloud put the input before the agent started; None if it did not.

        It is the file itself if the URL names one object, as for a copy.
        """
        machine = self._node.machine
        folder = machine.channel(name) if isinstance(machine, HasSagemakerTree) else None
        if folder is None or not folder.is_dir():
            return None
        self._say_about(name, f"{wanted.source} is a channel of the training job, at {folder}")
        file = folder / wanted.source.rpartition("/")[2]
        return file if file.is_file() else folder

    def _say_about(self, name: str, text: str) -> None:
        self._say(f"inputs.{name}: {text}")

    # ── A folder of this machine ──────────────────────────────────────────────────────────────────────────────────────

    def _use_in_place(self, name: str, path: Path, shard: Shard | None) -> Path:
        """Use a folder of the submitter's own computer without a copy."""
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "does not exist on this machine", str(path))
        if shard is None or not path.is_dir():
            return path

        def find() -> tuple[Meta, ...]:
            # By their names alone: the files are read in place, in the state they have then.
            return tuple(Meta(file, 0, shard_list.UNKNOWN_TIME, "") for file in sorted(list_files(path)))

        files = self._agree(name, path.as_uri(), find, shard, partial(self._say_about, name))
        # The targets of the links.
        self.paths.append(path)
        view = self._private_root / name
        shutil.rmtree(view, ignore_errors=True)
        with Extraction(view, follow=False) as extraction, extraction.staging() as staging:
            for file in shard.of(files):
                if not os.path.lexists(path / file.key):
                    raise UserError(f"{path / file.key} no longer exists; {_FIXED_LIST}")
                # Placed safely, not written through existing links: the list comes from a node by way of the store.
                staging.place_link(file.key, str(path / file.key))
        return view

    # ── Shards ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _agree(
        self,
        name: str,
        url: str,
        find: Callable[[], tuple[Meta, ...]],
        shard: Shard,
        say: Callable[[str], None],
    ) -> tuple[Meta, ...]:
        """Return all files of an input, as the first node of the job found them."""

        def find_enough() -> tuple[Meta, ...]:
            found = find()
            if len(found) < shard.nodes:
                raise UserError(f"{_count_text(len(found))} cannot be divided among {shard.nodes} nodes")
            return found

        key = keys.shared_files(self._node.config.job, name)
        return self._ask(lambda: shard_list.agree(self._node.store, key, url, find_enough), say)

    def _copy_shard(self, name: str, source: InputSource, shard: Shard, say: Callable[[str], None]) -> Path:
        files = self._agree(name, source.url, lambda: source.list().files, shard, say)
        listing = self._ask(partial(source.with_files, files), say)
        try:
            return self._copy(name, listing.part(shard), say)
        except ObjectChanged as error:
            raise UserError(f"{error}; {_FIXED_LIST}") from error

    def _wait(self) -> None:
        self._on_wait()
        self._check()

    # ── A copy ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _copy(self, name: str, listing: InputListing, say: Callable[[str], None]) -> Path:
        entry = CacheEntry(self._cache_root, listing)
        try:
            complete = entry.acquire(self._wait, lambda: say("another node of this machine is fetching it; waiting"))
        except InputInUse:
            # A training modified the shared copy and still uses it. It stays as it is.
            entry = CacheEntry(self._private_root / name, listing)
            complete = entry.acquire(self._check, lambda: None)
        what = f"{_files_text(listing)}, {size_text(listing.size)}"
        if complete:
            say(f"{what}, already on this machine")
            return entry.path
        try:
            self._fill(entry, what, say)
        except BaseException:  # an abort, too, must not leave the entry locked; raised again
            entry.release()
            raise
        return entry.path

    def _fill(self, entry: CacheEntry, what: str, say: Callable[[str], None]) -> None:
        parts = entry.missing()
        wanted = sum(part.end - part.begin for part in parts)
        free = shutil.disk_usage(entry.folder).free
        if wanted > free:
            raise OSError(errno.ENOSPC, f"{size_text(wanted)} are missing, and {size_text(free)} are free")
        there = f"; {size_text(entry.listing.size - wanted)} are on this machine" if wanted < entry.listing.size else ""
        say(f"fetching {what} from {entry.listing.url}{there}")
        began_s = time.monotonic()
        InputDownload(entry, parts, say).run(self._check)
        entry.finish()
        took_s = max(0.001, time.monotonic() - began_s)
        say(f"fetched {size_text(wanted)} in {time_text(took_s)}, {size_text(wanted / took_s)}/s")

    # ── A mount ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _mount(self, name: str, source: InputSource) -> Path:
        say = partial(self._say_about, name)
        # Checked first: the mounting program reports a missing or forbidden bucket less clearly, or not at all.
        folder, file = self._ask(source.find, say)
        self._mounts.mkdir(exist_ok=True)
        target = self._mounts / name
        mounted = mount(folder, target, self._mounts / f"{name}.log", self._check, region=source.region)
        self._mounted.append(mounted)
        say(f"{folder} is mounted read-only with {mounted.tool}")
        return target / file if file is not None else target

    def _ask(self, question: Callable[[], T], say: Callable[[str], None]) -> T:
        """Repeat a request until the store answers. Credentials that do not come in time are an error."""
        began_s, pause_s, reported = time.monotonic(), _FIRST_PAUSE_S, False
        while True:
            try:
                return run_watched(question, self._check)
            except StoreUnavailable as error:
                if isinstance(error, NoCredentials) and time.monotonic() - began_s > _CREDENTIALS_S:
                    raise
                if not reported:
                    say(f"{error}; trying again")
                    reported = True
            until_s = time.monotonic() + pause_s
            while (left_s := until_s - time.monotonic()) > 0:
                self._check()
                time.sleep(min(0.1, left_s))
            pause_s = min(_MAX_PAUSE_S, pause_s * 2)


def _files_text(listing: InputListing) -> str:
    count = _count_text(len(listing.files))
    return count if len(listing.files) == listing.total_files else f"{count} of {listing.total_files}"


def _count_text(files: int) -> str:
    return f"{files} file{'s' if files != 1 else ''}"


def _disk_text(error: OSError) -> str:
    if error.errno in _FULL:
        own = error.strerror if error.filename is None and error.strerror != os.strerror(error.errno) else ""
        full = f"this machine's disk is full: {own}" if own else "this machine's disk is full"
        return f"{full}; make room, or ask for a larger one with resources.disk"
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"
