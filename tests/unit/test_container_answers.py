"""Answers of a container engine that are unusual: an image that is not there after all, or no image at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import container_yard
import pytest
from container_yard import Yard, timed

from stoker.agent.container.engine import Engine, EngineResult
from stoker.agent.container.images import ImageFetcher
from stoker.agent.runtime import RuntimeView
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import ImageFact

yard = container_yard.yard


class Answers(Engine):
    """An engine that has these images, by name, and pulls without a word."""

    def __init__(self, **images: str) -> None:
        super().__init__("podman")
        self.images = images
        self.asked: list[str] = []

    def run(self, *arguments: str) -> EngineResult:
        self.asked.append(arguments[0])
        if arguments[0] == "pull":
            return EngineResult(0, "", "")
        found = self.images.get(arguments[2])
        return EngineResult(0, found, "") if found is not None else EngineResult(1, "", "Error: No such image")


def fetcher(engine: Engine, said: list[str]) -> ImageFetcher:
    @contextmanager
    def step(_name: str, _remedy: str) -> Iterator[None]:
        yield

    return ImageFetcher(engine, lambda _reference: None, Path("/nowhere"), said.append, step, lambda _seconds: None)


def document(entrypoint: Any = None) -> str:
    return json.dumps([{"Id": "1", "RepoDigests": [], "Config": {"Entrypoint": entrypoint}}])


def test_an_image_that_is_not_there_after_its_pull_is_the_machines_fault() -> None:
    engine = Answers()
    with pytest.raises(SetupFailed) as failed:
        fetcher(engine, []).fetch("repo/x:1")
    assert not failed.value.user
    assert str(failed.value) == "environment.container.image: repo/x:1 was pulled, but is not on this machine"
    assert engine.asked == ["image", "pull", "image"]


def test_an_image_of_no_registry_that_the_first_attempt_had_is_replaced_and_told() -> None:
    said: list[str] = []
    found = fetcher(Answers(x=document()), said).fetch("x", ImageFact("x", "sha256:0"))
    assert found.id == "sha256:1"
    assert said == ["the image of the first attempt (sha256:0) is not on this machine; the current x is used"]
    said.clear()
    fetcher(Answers(**{"x": document(), "sha256:1": document()}), said).fetch("x", ImageFact("x", "sha256:1"))
    assert said == []


@pytest.mark.parametrize("answer", ["", "[]", "no JSON", '[{"RepoDigests": []}]', "[null]"])
def test_an_answer_that_describes_no_image_is_told(answer: str) -> None:
    with pytest.raises(SetupFailed) as failed:
        fetcher(Answers(x=answer), []).fetch("x")
    assert not failed.value.user
    assert str(failed.value).startswith("environment.container: podman gives no usable answer about x: ")


@pytest.mark.parametrize(
    ("entrypoint", "argv"), [("sh -c", ("sh", "-c")), (["/entry", "--"], ("/entry", "--")), (None, ()), (7, ())]
)
def test_an_entry_point_is_a_list_or_a_text(entrypoint: Any, argv: tuple[str, ...]) -> None:
    assert fetcher(Answers(x=document(entrypoint)), []).fetch("x").entrypoint == argv


def test_a_container_that_cannot_be_started_is_told_by_what_the_engine_says(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, starts = Engine.run, list[tuple[str, ...]]()

    def refusing(engine: Engine, *arguments: str) -> EngineResult:
        if arguments[0] == "start":
            starts.append(arguments)
            return EngineResult(125, "", "Error response from daemon: no such device: /dev/x\n")
        return run(engine, *arguments)

    monkeypatch.setattr(Engine, "run", refusing)
    made = yard.make()
    made.open(timed)
    with pytest.raises(SetupFailed, match="no such device: /dev/x") as failed:
        made.enter(RuntimeView())
    assert failed.value.user
    assert len(starts) == 1, "it is not asked again"
