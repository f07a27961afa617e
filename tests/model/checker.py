"""A small explicit-state model checker: every interleaving, breadth first, and the shortest way to what goes wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """A set of states. A state without successors is an end: everything that was under way has landed."""

    def initial(self) -> State: ...

    def successors(self, state: State) -> Iterable[tuple[str, State]]: ...

    def broken(self, state: State) -> str | None:
        """What must hold in every state, and does not."""

    def broken_at_rest(self, state: State) -> str | None:
        """What must hold in the end, and does not."""


@dataclass(frozen=True)
class Counterexample:
    """What went wrong, and the steps that lead there."""

    what: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.what, *self.steps])


@dataclass(frozen=True)
class Explored:
    """How many states there are, or the first that is wrong."""

    states: int
    counterexample: Counterexample | None = None


class Explorer(Generic[State]):
    """Explores one model."""

    def __init__(self, model: Model[State], most: int = 400_000) -> None:
        self.model = model
        self.most = most
        self._came_from: dict[State, tuple[State, str] | None] = {}

    def run(self) -> Explored:
        first = self.model.initial()
        self._came_from = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            following = list(self.model.successors(state))
            what = self.model.broken(state) or (None if following else self.model.broken_at_rest(state))
            if what is not None:
                return Explored(len(self._came_from), Counterexample(what, tuple(self._steps(state))))
            for step, after in following:
                if after not in self._came_from:
                    self._came_from[after] = (state, step)
                    queue.append(after)
            if len(self._came_from) > self.most:
                raise AssertionError(f"more than {self.most} states: the model is too large to be checked")
        return Explored(len(self._came_from))

    def _steps(self, state: State) -> Iterator[str]:
        steps = []
        came = self._came_from[state]
        while came is not None:
            before, step = came
            steps.append(step)
            came = self._came_from[before]
        yield from reversed(steps)


def explore(model: Model[State]) -> Explored:
    return Explorer(model).run()
