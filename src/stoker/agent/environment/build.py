"""Take an environment from this machine's cache, else restore it from the store, else build it and upload it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.agent.environment.archive import list_folder
from stoker.agent.environment.local_cache import EnvironmentInUse, EnvironmentLock, LocalCache
from stoker.agent.environment.steps import SetupSteps
from stoker.agent.environment.store_cache import BackgroundUpload, DamagedCopy, StoreCache
from stoker.agent.environment.variables import digest_settings
from stoker.agent.node import AgentNode, AskStore
from stoker.agent.runtime import Command
from stoker.model.submission import Submission
from stoker.providers.base import HasEnvironmentCache

_KEY_LENGTH = 32
_MODIFIED = "its environment was modified after it was built"


@dataclass(frozen=True)
class Recipe:
    """How to build one environment. `name` is the file it is built from, which users know it by."""

    name: str
    # Digest of everything that decides the environment's contents and location.
    key: str
    # The machine that it is for: processor, C library and the like.
    platform: str
    # Tells if the environment that was restored into this folder runs on this machine.
    runs: Callable[[Path], bool]
    # Builds it in this folder, which must not exist. Raises SetupFailed.
    build: Callable[[Path], None]


class EnvironmentBuilder:
    """Provide the environments of one node's set-up. This process holds their locks until it exits.

    `check` is called during everything that takes time and may raise; `on_wait` too, while another node builds the same
    environment. `image` is the digest of the training's container image; empty if it runs on the machine itself.
    """

    def __init__(
        self,
        node: AgentNode,
        submission: Submission,
        steps: SetupSteps,
        ask: AskStore,
        check: Callable[[], None],
        on_wait: Callable[[], None] = lambda: None,
        *,
        image: str = "",
    ) -> None:
        self.node = node
        self.submission = submission
        self.steps = steps
        self.ask = ask
        self._image = image
        self._check = check
        self._on_wait = on_wait
        # The machine outlives the job, and so do its environments: they need no copy in the store.
        self.keeps_environments = isinstance(node.machine, HasEnvironmentCache)
        # Commands of the set-up may install into the environment, so it must not be shared with other nodes of a
        # machine that keeps it.
        private = self.keeps_environments and submission.spec.setup is not None
        self._private_cache = LocalCache(node.paths.environments)
        self._local_cache = self._private_cache if private else LocalCache(node.environments)
        self._store_cache = StoreCache(node.store, submission.job)
        self._locks: list[EnvironmentLock] = []
        self._uploads: list[BackgroundUpload] = []

    @property
    def root(self) -> Path:
        """The folder of the environments."""
        return self._local_cache.root

    def key(
        self, facts: Mapping[str, object], installer: Command, settings_files: Iterable[str], *, uses_code: bool
    ) -> str:
        """Return the key of the environment that these facts determine, with those that are the same for all kinds.

        `uses_code`: any change of the code may change the environment. `settings_files` are read by the installer.
        """
        spec, code = self.submission.spec, self.submission.code
        digest = code.digest if code is not None else ""
        shared = {
            "code": (digest or None) if uses_code else None,
            "settings": digest_settings(installer, digest, settings_files, read_files=not self._image),
            "image": self._image or spec.resources.image,
            "apt": spec.environment.apt,
            # The environment's scripts contain its path.
            "folder": str(self.root),
        }
        return hashlib.sha256(json.dumps({**facts, **shared}, sort_keys=True).encode()).hexdigest()[:_KEY_LENGTH]

    def contains(self, key: str) -> bool:
        """Tell if the environment was built on this machine. It may have been modified, or be removed at any moment."""
        return self._local_cache.contains(key)

    def get_or_build(self, recipe: Recipe) -> Path:
        """Return the folder of the complete environment.

        Raises SetupFailed, and whatever `check` raises to end this node's work.
        """
        lock = self._acquire(recipe)
        self._locks.append(lock)
        if lock.complete:
            self.node.say(f"{recipe.name}: its environment exists already")
            return lock.folder
        if lock.modified:
            self.node.say(f"{recipe.name}: {_MODIFIED}, so it is built again")
        # An environment outside the folder that is part of its key must not be shared under that key.
        shared = not self.keeps_environments and lock.folder.parent == self.root
        try:
            if not shared or not self._restore(lock, recipe):
                self._build(lock, recipe, shared=shared)
        except BaseException:  # an abort, too, must not leave half an environment behind; raised again
            lock.abandon()
            raise
        if self.keeps_environments:
            self._local_cache.prune()
        return lock.folder

    def _acquire(self, recipe: Recipe) -> EnvironmentLock:
        try:
            return self._local_cache.acquire(recipe.key, self._wait, self.node.say)
        except EnvironmentInUse:
            self.node.say(f"{recipe.name}: {_MODIFIED}, and is in use, so this node gets its own")
            return self._private_cache.acquire(recipe.key, self._check, self.node.say)

    def _wait(self) -> None:
        self._on_wait()
        self._check()

    def wait_for_uploads(self, until_s: Callable[[], float]) -> None:
        """Wait for the uploads until this monotonic time at most. The time may move closer meanwhile."""
        for upload in self._uploads:
            upload.wait(until_s)

    def _restore(self, lock: EnvironmentLock, recipe: Recipe) -> bool:
        try:
            found = self.ask(lambda: self._store_cache.find(lock.key))
            if found is None:
                return False
            with self.steps.timed(f"restore of {recipe.name}", "choose a machine with a quicker disk or network"):
                self.ask(lambda: self._store_cache.restore(found, lock.key, recipe.platform, lock.folder))
                if not recipe.runs(lock.folder):
                    raise DamagedCopy("its Python does not run here", *self._store_cache.keys_of(found))
        except DamagedCopy as damaged:
            self.node.say(f"{recipe.name}: the stored environment cannot be used: {damaged}; building it again")
            self.ask(partial(self._store_cache.discard, damaged))
            shutil.rmtree(lock.folder, ignore_errors=True)
            return False
        self.node.say(f"{recipe.name}: restored from the store ({found.manifest.size / 1e6:,.0f} MB)")
        lock.finish()
        return True

    def _build(self, lock: EnvironmentLock, recipe: Recipe, *, shared: bool) -> None:
        recipe.build(lock.folder)
        # Listed before any command can modify it.
        listing = list_folder(lock.folder)
        lock.finish()
        if not shared or self.node.config.rank != 0:
            return  # Rank 0 uploads: the other ranks have just built the same environment.
        self._uploads.append(
            BackgroundUpload(self._store_cache, lock.key, recipe.platform, lock.folder, listing, self.node.say)
        )
