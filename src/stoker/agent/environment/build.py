"""An environment is taken from this machine's shelf, else restored from the store, else made now and then kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.agent.environment.archive import take_listing
from stoker.agent.environment.local_cache import Held, InUse, Shelf
from stoker.agent.environment.steps import Steps
from stoker.agent.environment.store_cache import Cache, Damaged, Keeping
from stoker.agent.node import Ask, Node
from stoker.model.spec import Submission
from stoker.providers.base import KeepsEnvironments

_KEY_LENGTH = 32
_CHANGED = "its environment was changed after it was made"


@dataclass(frozen=True)
class Recipe:
    """How to have one. `name` is what people know it by: the file that it is made from."""

    name: str
    # The digest of everything that decides what is in it, and where it lies.
    key: str
    # The machine that it is for: processor, C library and the like.
    platform: str
    # Whether one that was restored into this folder is of any use here.
    runs: Callable[[Path], bool]
    # Makes it, in this folder, which is not there. Raises SetupFailed.
    build: Callable[[Path], None]


def digest_of(facts: Mapping[str, object]) -> str:
    """A key."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_KEY_LENGTH]


class Making:
    """The environments of one node's set-up. They are this process's to use for as long as it lives.

    `check` is asked while anything takes time, and may raise; `waits`, too, while another node makes one.
    """

    def __init__(
        self,
        node: Node,
        submission: Submission,
        steps: Steps,
        ask: Ask,
        check: Callable[[], None],
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._steps = steps
        self._ask = ask
        self._check = check
        self._waits = waits
        # The machine stays when the job is over, and environments with it: they need no copy in the store.
        self.here = isinstance(node.machine, KeepsEnvironments)
        # Commands of the set-up may install into it: then it is this node's alone where others would find it.
        own = self.here and submission.spec.setup is not None
        self._own = Shelf(node.paths.environments)
        self._shelf = self._own if own else Shelf(node.environments)
        self._cache = Cache(node.store, submission.job)
        self._held: list[Held] = []
        self._keeping: list[Keeping] = []

    @property
    def root(self) -> Path:
        """Where they lie."""
        return self._shelf.root

    def knows(self, key: str) -> bool:
        """Whether one was made here already. It may have been changed, or be removed any moment."""
        return self._shelf.knows(key)

    def have(self, recipe: Recipe) -> Path:
        """The environment, whole, and where it lies. Raises SetupFailed, and whatever tells this node to go."""
        held = self._hold(recipe)
        self._held.append(held)
        if held.complete:
            self._node.say(f"{recipe.name}: its environment is there already")
            return held.folder
        if held.changed:
            self._node.say(f"{recipe.name}: {_CHANGED}, so it is made anew")
        # Only one that lies where its key says is what others know by this key.
        shared = not self.here and held.folder.parent == self.root
        try:
            if not shared or not self._restored(held, recipe):
                self._build(held, recipe, shared=shared)
        except BaseException:
            held.abandon()
            raise
        if self.here:
            self._shelf.prune()
        return held.folder

    def _hold(self, recipe: Recipe) -> Held:
        try:
            return self._shelf.hold(recipe.key, self._wait, self._node.say)
        except InUse:
            self._node.say(f"{recipe.name}: {_CHANGED}, and is in use, so this node gets its own")
            return self._own.hold(recipe.key, self._check, self._node.say)

    def _wait(self) -> None:
        self._waits()
        self._check()

    def settle(self, until_s: Callable[[], float]) -> None:
        """Wait for what is being kept, until that monotonic time and no longer. It may come closer meanwhile."""
        for keeping in self._keeping:
            keeping.settle(until_s)

    def _restored(self, held: Held, recipe: Recipe) -> bool:
        try:
            found = self._ask(lambda: self._cache.find(held.key))
            if found is None:
                return False
            with self._steps.timed(f"restore of {recipe.name}", "choose a machine with a quicker disk or network"):
                self._ask(lambda: self._cache.restore(found, held.key, recipe.platform, held.folder))
                if not recipe.runs(held.folder):
                    raise Damaged("its Python does not run here", *self._cache.names(found))
        except Damaged as damaged:
            self._node.say(f"{recipe.name}: the environment that was kept cannot be used: {damaged}; it is made anew")
            self._ask(partial(self._cache.discard, damaged))
            shutil.rmtree(held.folder, ignore_errors=True)
            return False
        self._node.say(f"{recipe.name}: restored from the store ({found.kept.size / 1e6:,.0f} MB)")
        held.finish()
        return True

    def _build(self, held: Held, recipe: Recipe, *, shared: bool) -> None:
        recipe.build(held.folder)
        # Before anybody can change it.
        listing = take_listing(held.folder)
        held.finish()
        if not shared or self._node.config.rank != 0:
            return  # The other nodes have just made the same.
        self._keeping.append(Keeping(self._cache, held.key, recipe.platform, held.folder, listing, self._node.say))
