"""Have every input of a job on this machine, in the way that its mode says. May be repeated."""

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
from stoker.agent.inputs.cache import InUse, Kept, prune
from stoker.agent.inputs.download import Fetch, size_text, time_text
from stoker.agent.inputs.mount import Mounted, NotMountable, mount
from stoker.agent.inputs.source import Listing, Shard, Source, list_files, local_path
from stoker.agent.node import Node
from stoker.model import keys
from stoker.model.errors import NoCredentials, SetupFailed, StokerError, StoreUnavailable, UserError
from stoker.model.spec import Input
from stoker.store.base import Meta, ObjectChanged
from stoker.store.parallel import run_watched
from stoker.store.safe_extraction import Extraction

T = TypeVar("T")

# A source that is written to all the time is no data set.
_MOST_CHANGES = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CREDENTIALS_S = 60.0
# Of files that nodes share out, who looks later may not find others.
_RESTS = "the nodes share out what the first of them found: leave that as it is, and submit again"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Inputs:
    """The inputs of one node. `kept` is where copies are kept. `check` is called all the time, and may raise; `waits`,
    too, while another node brings them."""

    def __init__(
        self,
        node: Node,
        check: Callable[[], None],
        *,
        waits: Callable[[], None] = lambda: None,
        kept: Path | None = None,
    ) -> None:
        self._node = node
        self._kept = kept or node.inputs
        self._own = node.paths.inputs
        self._mounts = node.paths.mounts
        self._shard = Shard(node.config.rank, node.config.nodes)
        self._say = node.say
        # What the training has to see of this machine.
        self.paths: list[Path] = []
        self._mounted: list[Mounted] = []
        self._check = check
        self._waits = waits

    def bring(self, inputs: Mapping[str, Input]) -> dict[str, str]:
        """Where each is: a folder, a file, or for `stream` the URL itself. Raises SetupFailed that names the input."""
        where = {}
        for name, wanted in inputs.items():
            try:
                where[name] = self._bring(name, wanted)
            except SetupFailed:
                raise
            except (NotMountable, StokerError) as error:
                # A store that does not answer never gets here: it is asked until it does.
                raise SetupFailed(f"inputs.{name}: {error}", user=True) from error
            except OSError as error:
                raise SetupFailed(f"inputs.{name}: {_disk_text(error)}", user=True) from error
        prune(self._kept)
        return where

    def cut(self) -> None:
        """Let nobody wait for what is mounted any more. It is good for nothing then. Repeating is harmless."""
        for mounted in self._mounted:
            mounted.cut()

    def _bring(self, name: str, wanted: Input) -> str:
        if wanted.mode == "stream":
            return wanted.source
        path = self._bring_here(name, wanted)
        self.paths.append(path)
        return str(path)

    def _bring_here(self, name: str, wanted: Input) -> Path:
        shard = self._shard if wanted.shard and self._shard.nodes > 1 else None
        path = local_path(wanted.source)
        if path is not None:
            return self._use_in_place(name, Path(path), shard)
        say = partial(self._tell, name)
        source = Source(wanted.source, say)
        if wanted.mode == "mount":
            return self._mount(name, source)
        if shard is not None:
            return self._copy_shard(name, source, shard, say)
        for _ in range(_MOST_CHANGES):
            listing = self._ask(source.list, say)
            try:
                return self._copy(name, listing, say)
            except ObjectChanged as error:
                say(f"{error}: it is changed while it is fetched; looking again at what is there")
        raise SetupFailed(f"inputs.{name}: {wanted.source} keeps changing while it is fetched", user=True)

    def _tell(self, name: str, text: str) -> None:
        self._say(f"inputs.{name}: {text}")

    # ── A folder of this machine ──────────────────────────────────────────────────────────────────────────────────────

    def _use_in_place(self, name: str, path: Path, shard: Shard | None) -> Path:
        """On the submitter's own computer a folder needs no copy."""
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "is not there on this machine", str(path))
        if shard is None or not path.is_dir():
            return path

        def find() -> tuple[Meta, ...]:
            # By their names alone: what is read in place is read as it is then.
            return tuple(Meta(file, 0, shard_list.UNTOLD, "") for file in sorted(list_files(path)))

        files = self._agree(name, path.as_uri(), find, shard, partial(self._tell, name))
        # What the links lead to.
        self.paths.append(path)
        view = self._own / name
        shutil.rmtree(view, ignore_errors=True)
        with Extraction(view, follow=False) as extraction, extraction.staging() as staging:
            for file in shard.of(files):
                if not os.path.lexists(path / file.key):
                    raise UserError(f"{path / file.key} is not there any more; {_RESTS}")
                # Placed, and not made through what stands there: the list is what a node wrote into the store.
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
        """All files of an input, as the first node of the job found them."""

        def find_enough() -> tuple[Meta, ...]:
            found = find()
            if len(found) < shard.nodes:
                raise UserError(f"{_count_text(len(found))} cannot be shared out among {shard.nodes} nodes")
            return found

        key = keys.shared_files(self._node.config.job, name)
        return self._ask(lambda: shard_list.agree(self._node.store, key, url, find_enough), say)

    def _copy_shard(self, name: str, source: Source, shard: Shard, say: Callable[[str], None]) -> Path:
        files = self._agree(name, source.url, lambda: source.list().files, shard, say)
        listing = self._ask(partial(source.those, files), say)
        try:
            return self._copy(name, listing.part(shard), say)
        except ObjectChanged as error:
            raise UserError(f"{error}; {_RESTS}") from error

    def _wait(self) -> None:
        self._waits()
        self._check()

    # ── A copy ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _copy(self, name: str, listing: Listing, say: Callable[[str], None]) -> Path:
        kept = Kept(self._kept, listing)
        try:
            whole = kept.take(self._wait, lambda: say("another node of this machine is fetching it; waiting"))
        except InUse:
            # Somebody's training wrote into it. Theirs stays as it is.
            kept = Kept(self._own / name, listing)
            whole = kept.take(self._check, lambda: None)
        what = f"{_files_text(listing)}, {size_text(listing.size)}"
        if whole:
            say(f"{what}, there already")
            return kept.path
        try:
            self._fill(kept, what, say)
        except BaseException:
            kept.release()
            raise
        return kept.path

    def _fill(self, kept: Kept, what: str, say: Callable[[str], None]) -> None:
        parts = kept.missing()
        wanted = sum(part.end - part.begin for part in parts)
        free = shutil.disk_usage(kept.folder).free
        if wanted > free:
            raise OSError(errno.ENOSPC, f"{size_text(wanted)} are to come, and {size_text(free)} are free")
        there = f"; {size_text(kept.listing.size - wanted)} are there" if wanted < kept.listing.size else ""
        say(f"fetching {what} from {kept.listing.url}{there}")
        began_s = time.monotonic()
        Fetch(kept, parts, say).run(self._check)
        kept.finish()
        took_s = max(0.001, time.monotonic() - began_s)
        say(f"fetched {size_text(wanted)} in {time_text(took_s)}, {size_text(wanted / took_s)}/s")

    # ── A mount ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _mount(self, name: str, source: Source) -> Path:
        say = partial(self._tell, name)
        # Asked first: who mounts it says in other words, or not at all, that it is not there or not allowed.
        folder, file = self._ask(source.find, say)
        self._mounts.mkdir(exist_ok=True)
        target = self._mounts / name
        mounted = mount(folder, target, self._mounts / f"{name}.log", self._check, region=source.region)
        self._mounted.append(mounted)
        say(f"{folder} is mounted with {mounted.tool}, to be read")
        return target / file if file is not None else target

    def _ask(self, question: Callable[[], T], say: Callable[[str], None]) -> T:
        """Ask the store until it answers. Credentials that do not come in time are an answer."""
        began_s, pause_s, told = time.monotonic(), _FIRST_PAUSE_S, False
        while True:
            try:
                return run_watched(question, self._check)
            except StoreUnavailable as error:
                if isinstance(error, NoCredentials) and time.monotonic() - began_s > _CREDENTIALS_S:
                    raise
                if not told:
                    say(f"{error}; trying again")
                    told = True
            until_s = time.monotonic() + pause_s
            while (left_s := until_s - time.monotonic()) > 0:
                self._check()
                time.sleep(min(0.1, left_s))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _files_text(listing: Listing) -> str:
    count = _count_text(len(listing.files))
    return count if len(listing.files) == listing.found else f"{count} of {listing.found}"


def _count_text(files: int) -> str:
    return f"{files} file{'s' if files != 1 else ''}"


def _disk_text(error: OSError) -> str:
    if error.errno in _FULL:
        own = error.strerror if error.filename is None and error.strerror != os.strerror(error.errno) else ""
        full = f"this machine's disk is full: {own}" if own else "this machine's disk is full"
        return f"{full}; make room, or ask for a larger one with resources.disk"
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"
