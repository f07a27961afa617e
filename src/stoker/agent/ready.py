"""Everything between a machine that the log knows and the first start of the training on it. May be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from stoker.agent import folders, prepare, sagemaker
from stoker.agent.enclosure import Command, Enclosure
from stoker.agent.environ import Place, lay_library, training_environment
from stoker.agent.environment.steps import Step, Steps
from stoker.agent.gang import Agreement
from stoker.agent.masker import SHORTEST_BYTES
from stoker.agent.masking import can_mask
from stoker.agent.node import Node
from stoker.agent.secrets import fetch_all
from stoker.command import shell_argv
from stoker.fold import JobState
from stoker.spec import Submission

T = TypeVar("T")


class Ask(Protocol):
    """Ask the store until it answers. Raises whatever tells this node to go."""

    def __call__(self, question: Callable[[], T]) -> T: ...


@dataclass(frozen=True)
class Ready:
    """What the training finds on this machine, whatever attempt it is."""

    inputs: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    # What the environment that was made sets: PATH, VIRTUAL_ENV.
    environ: dict[str, str] = field(default_factory=dict)
    # As its cloud calls this kind of machine.
    machine: str = ""


class Readying:
    """One set-up. `check` is asked while anything takes time, and may raise."""

    def __init__(self, node: Node, enclosure: Enclosure, ask: Ask, check: Callable[[], None]) -> None:
        self._node = node
        self._paths = node.paths
        self._enclosure = enclosure
        self._ask = ask
        self._check = check

    def run(self, state: JobState, submission: Submission) -> Ready:
        """Code, secrets, inputs, then the steps of the environment. Raises SetupFailed, and whatever `check` raises."""
        self._ask(lambda: prepare.fetch_code(self._node.store, state, submission, self._paths))
        sagemaker.check(self._enclosure, self._paths, submission.spec)
        secrets = self._secrets(submission.spec.secrets)
        inputs = self._ask(lambda: prepare.fetch_inputs(submission, self._paths))
        claim = state.claim(self._node.config.claim)
        assert claim is not None
        ready = Ready(inputs, secrets, machine=claim.offering.machine)
        lay_library(self._paths.lib)
        steps = Steps(self._enclosure, self._paths.train_log, self._node.say, self._check)
        if submission.spec.setup:
            command = self._command(submission, ready, shell_argv(submission.spec.setup))
            steps.run(Step("setup", command, "put what does not change into `environment`, which is kept"))
        steps.report()
        return ready

    def _secrets(self, references: Mapping[str, str]) -> dict[str, str]:
        """Their values, anew for each attempt: tokens expire, and people change passwords."""
        found = self._ask(lambda: fetch_all(references, os.environ))
        for name in (name for name, value in found.items() if not can_mask(value)):
            self._node.say(f"secrets.{name} is shorter than {SHORTEST_BYTES} bytes, and is not masked in the log")
        return found

    def _command(self, submission: Submission, ready: Ready, argv: tuple[str, ...]) -> Command:
        """A command that sees what the training will see, as far as it is known yet."""
        alone = Agreement(("127.0.0.1",) * self._node.config.nodes, 0, None)
        place = make_place(self._node, submission, ready, alone, 0)
        return make_command(self._node, submission, ready, place, argv)


def make_place(node: Node, submission: Submission, ready: Ready, agreement: Agreement, attempt: int) -> Place:
    """Where this attempt trains."""
    spec, paths = submission.spec, node.paths
    outputs = folders.output_folder(paths, spec)
    if outputs is not None:
        outputs.mkdir(parents=True, exist_ok=True)
    return Place(
        attempt=attempt,
        rank=node.config.rank,
        addresses=agreement.addresses,
        port=agreement.port,
        gpus=prepare.count_gpus(),
        code=paths.code,
        checkpoints=folders.checkpoint_folder(paths, spec),
        channel=paths.channel,
        notice=paths.notice,
        inputs=ready.inputs,
        outputs=outputs,
        lib=paths.lib,
        environ=ready.environ,
    )


def make_command(node: Node, submission: Submission, ready: Ready, place: Place, argv: tuple[str, ...]) -> Command:
    """A command that sees what the job's contract promises. Lays what it is to see; may be repeated."""
    env = training_environment(os.environ, submission, place)
    command = Command(argv, env, node.paths.code, ready.secrets)
    if submission.spec.environment.contract is None:
        return command
    machine = sagemaker.look(place, sagemaker.instance_type(node.config.provider, ready.machine))
    return sagemaker.enclose(command, submission, place, node.paths, machine)
