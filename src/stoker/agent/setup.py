"""Everything between a machine that the log knows and the first start of the training on it. May be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from stoker.agent import fetch_code, job_folders, sagemaker_scripts
from stoker.agent.environment import apt
from stoker.agent.environment.build import Making
from stoker.agent.environment.conda import Conda
from stoker.agent.environment.index import PrivateIndex
from stoker.agent.environment.packages import Packages
from stoker.agent.environment.steps import Step, Steps
from stoker.agent.inputs.service import Inputs
from stoker.agent.inputs.source import local_path
from stoker.agent.node import Ask, Node
from stoker.agent.rendezvous import Agreement
from stoker.agent.runtime import Command, Enclosure, View
from stoker.agent.training_environment import Place, lay_library, training_environment
from stoker.model.command_line import shell_argv
from stoker.model.job_state import JobState
from stoker.model.package_sources import private_variables
from stoker.model.spec import Submission
from stoker.providers.base import KeepsEnvironments
from stoker.secrets.fetch_secrets import fetch, fetch_all
from stoker.secrets.masked_output import can_mask
from stoker.secrets.masker import SHORTEST_BYTES


@dataclass(frozen=True)
class Ready:
    """What the training finds on this machine, whatever attempt it is."""

    inputs: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    # What the environment that was made sets: PATH, VIRTUAL_ENV.
    environ: dict[str, str] = field(default_factory=dict)
    # As its cloud calls this kind of machine.
    machine: str = ""
    # What is set where it runs, before the job adds to it, and the GPUs that are seen there.
    base: dict[str, str] = field(default_factory=dict, repr=False)
    gpus: int = 0


class Readying:
    """One set-up. `check` is asked while anything takes time, and may raise; `waits`, too, while that is another node's
    to do."""

    def __init__(
        self,
        node: Node,
        enclosure: Enclosure,
        ask: Ask,
        check: Callable[[], None],
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._paths = node.paths
        self._enclosure = enclosure
        self._ask = ask
        self._check = check
        self._waits = waits
        self._inputs = Inputs(node, check, waits=waits)
        self._making: Making | None = None
        # What nobody else may see, as far as it is known yet; and whether an image is being had.
        self.secrets: dict[str, str] = {}
        self.pulling = False

    def run(self, state: JobState, submission: Submission) -> Ready:
        """Code, secrets, inputs, then the steps of the environment. Raises SetupFailed, and whatever `check` raises."""
        try:
            return self._run(state, submission)
        except OSError as error:
            raise fetch_code.by_the_machine(error) from error

    def _run(self, state: JobState, submission: Submission) -> Ready:
        self._ask(lambda: fetch_code.fetch_code(self._node.store, state, submission, self._paths))
        sagemaker_scripts.check(self._enclosure, self._paths, submission.spec)
        secrets = self._secrets(submission.spec.secrets)
        inputs = self._inputs.bring(submission.spec.inputs)
        claim = state.claim(self._node.config.claim)
        assert claim is not None
        lay_library(self._paths.lib)
        steps = Steps(self._enclosure, self._paths.train_log, self._node.say, self._check_step)
        self._enter(submission, self._inputs.paths, inputs, steps)
        ready = Ready(
            inputs,
            secrets,
            machine=claim.offering.machine,
            base=self._base(submission),
            gpus=self._enclosure.gpus,
        )
        ready = replace(ready, environ=self._install(submission, ready, steps))
        if submission.spec.setup:
            command = self._with_index(submission, self._command(submission, ready, shell_argv(submission.spec.setup)))
            steps.run(Step("setup", command, "put what does not change into `environment`, which is kept"))
        steps.report()
        return ready

    def cut_mounts(self) -> None:
        """Let nobody wait for what is mounted any more."""
        self._inputs.cut()

    def settle(self, until_s: Callable[[], float]) -> None:
        """Wait for what the set-up left to be done behind the training's back, until that monotonic time at most."""
        if self._making is not None:
            self._making.settle(until_s)

    def _check_step(self) -> None:
        try:
            self._check()
        except BaseException:
            # Its step is killed now. Who waits for a mount that does not answer would not die of it.
            self.cut_mounts()
            raise

    def _install(self, submission: Submission, ready: Ready, steps: Steps) -> dict[str, str]:
        """What the job wants installed, in this order. Answers the variables with which it is found."""
        wishes = submission.spec.environment
        if wishes.apt:
            # A machine that outlives its nodes is somebody's own.
            keep_out = wishes.container is None and isinstance(self._node.machine, KeepsEnvironments)
            step = apt.step(wishes.apt, wishes.apt_mirror, self._fetch, ready.base, self._paths.code, keep_out=keep_out)
            steps.run(step)
        node = replace(self._node, shelf=self._enclosure.environments)
        making = self._making = Making(node, submission, steps, self._ask, self._check, self._waits)
        image = self._enclosure.image or ""
        environ: dict[str, str] = {}
        python: str | None = None
        if wishes.conda is not None:
            command = partial(self._command, submission, ready)
            made = Conda(node, submission, steps, command, making, self._fetch, image=image).make()
            environ, python = made.environ, made.python
        # What was made so far is found by what comes next.
        command = partial(self._command, submission, replace(ready, environ=environ))
        packages = Packages(node, submission, steps, command, self._ask, making, image=image)
        environ |= packages.make(python=python)
        for name in ("CONDA_PREFIX", "VIRTUAL_ENV"):
            if name in environ:
                self._enclosure.hand_over(Path(environ[name]))
        return environ

    def _base(self, submission: Submission) -> dict[str, str]:
        """What is set where it runs, without passwords that are not for the training."""
        private = private_variables(submission.spec.environment)
        found = self._enclosure.environ(submission.environ)
        return {name: value for name, value in found.items() if name not in private}

    def _enter(self, submission: Submission, paths: Sequence[Path], inputs: Mapping[str, str], steps: Steps) -> None:
        """Where the commands run, with all that they see: what lies outside of the node's own folder is named."""
        self.pulling = submission.spec.environment.container is not None
        try:
            self._enclosure.open(steps.timed)
        finally:
            self.pulling = False
        spec = submission.spec
        made = job_folders.written(self._paths, spec)
        environments = self._node.environments
        for folder in (*made, environments):
            folder.mkdir(parents=True, exist_ok=True)
        local = (local_path(wanted.source) for wanted in spec.inputs.values() if wanted.mode != "stream")
        self._enclosure.enter(
            View(
                written=tuple(made),
                # Under the name that they have, and under those that it may be a link to.
                read=tuple(path for where in paths for path in (where, where.resolve())),
                in_place=tuple(Path(path) for path in local if path is not None),
                environments=environments,
                mounts=sagemaker_scripts.mounts(self._paths, spec, inputs),
            )
        )

    def _with_index(self, submission: Submission, command: Command) -> Command:
        """The same command with the job's package index: what it installs comes from there, too."""
        source = submission.spec.environment.index
        if source is None:
            return command
        index = PrivateIndex(source, self._fetch).for_commands()
        own = submission.spec.env
        env = {name: value for name, value in index.env.items() if name not in own}
        secrets = {name: value for name, value in index.secrets.items() if name not in own}
        return replace(command, env={**command.env, **env}, secrets={**secrets, **command.secrets})

    def _fetch(self, field: str, reference: str) -> str:
        found = self.secrets[field] = self._ask(lambda: fetch(field, reference, os.environ))
        return found

    def _secrets(self, references: Mapping[str, str]) -> dict[str, str]:
        """Their values, anew for each attempt: tokens expire, and people change passwords."""
        found = self._ask(lambda: fetch_all(references, os.environ))
        self.secrets |= found
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
    outputs = job_folders.output_folder(paths, spec)
    outputs.mkdir(parents=True, exist_ok=True)
    return Place(
        attempt=attempt,
        rank=node.config.rank,
        addresses=agreement.addresses,
        port=agreement.port,
        gpus=ready.gpus,
        code=paths.code,
        checkpoints=job_folders.checkpoint_folder(paths, spec),
        channel=paths.channel,
        notice=paths.notice,
        inputs=ready.inputs,
        outputs=outputs,
        lib=paths.lib,
        environ=ready.environ,
    )


def make_command(node: Node, submission: Submission, ready: Ready, place: Place, argv: tuple[str, ...]) -> Command:
    """A command that sees what the job's contract promises. Lays what it is to see; may be repeated."""
    env = training_environment(ready.base, submission, place)
    command = Command(argv, env, node.paths.code, ready.secrets)
    if submission.spec.environment.contract is None:
        return command
    machine = sagemaker_scripts.look(place, sagemaker_scripts.instance_type(node.config.provider, ready.machine))
    return sagemaker_scripts.enclose(command, submission, place, node.paths, machine)
