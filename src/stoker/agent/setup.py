"""Set up a machine that the log has named, until the training can start on it. May be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from stoker.agent import fetch_code, host_names, job_folders, sagemaker_machine, sagemaker_scripts
from stoker.agent.confinement import Confinement
from stoker.agent.environment import apt
from stoker.agent.environment.build import EnvironmentBuilder
from stoker.agent.environment.conda import Conda
from stoker.agent.environment.install_packages import Packages
from stoker.agent.environment.package_sources import PrivateIndex
from stoker.agent.environment.steps import SetupSteps, Step
from stoker.agent.health.accelerators import count_processes
from stoker.agent.inputs.service import Inputs
from stoker.agent.inputs.source import local_path
from stoker.agent.node import AgentNode, AskStore
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.runtime import Command, Runtime, RuntimeView
from stoker.agent.training_environment import TrainingLocation, training_environment, write_library
from stoker.core.node_names import node_names
from stoker.model.command_line import shell_argv
from stoker.model.job_state import JobState
from stoker.model.package_sources import private_variables
from stoker.model.submission import Submission
from stoker.providers.base import HasEnvironmentCache
from stoker.secrets.fetch_secrets import fetch, fetch_all
from stoker.secrets.masked_output import can_mask
from stoker.secrets.masker import SHORTEST_BYTES


@dataclass(frozen=True)
class SetupResult:
    """Everything that the set-up provides for the training, whatever attempt it is."""

    inputs: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    # The variables of the environment that was built: PATH, VIRTUAL_ENV.
    environ: dict[str, str] = field(default_factory=dict)
    # The cloud's name of the machine type.
    machine: str = ""
    # The variables of the runtime before the job adds its own, and the GPUs that it shows.
    base: dict[str, str] = field(default_factory=dict, repr=False)
    gpus: int = 0
    # The name that this node calls itself; empty if it can have none.
    host: str = ""
    # Accelerators of other makers, for which torchrun starts a process each.
    processes: int = 0


class Setup:
    """One set-up. `check` is called while anything takes time, and may raise to end the set-up.

    `on_wait` is called again and again while this node waits for another one.
    """

    def __init__(
        self,
        node: AgentNode,
        runtime: Runtime,
        ask_store: AskStore,
        check: Callable[[], None],
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._paths = node.paths
        self._runtime = runtime
        self._ask_store = ask_store
        self._check = check
        self._on_wait = on_wait
        self._inputs = Inputs(node, check, on_wait=on_wait)
        self._builder: EnvironmentBuilder | None = None
        # The secrets that were fetched so far: they are masked in stack dumps.
        self.secrets: dict[str, str] = {}
        # True while an image is being pulled.
        self.pulling = False

    def run(self, state: JobState, submission: Submission) -> SetupResult:
        """Provide code, secrets and inputs, then run the steps of the environment.

        Raises SetupFailed, and the exceptions of `check`.
        """
        try:
            return self._run(state, submission)
        except OSError as error:
            raise fetch_code.machine_failure(error) from error

    def _run(self, state: JobState, submission: Submission) -> SetupResult:
        self._ask_store(lambda: fetch_code.fetch_code(self._node.store, state, submission, self._paths))
        sagemaker_scripts.check_mounts(self._runtime, self._paths, submission.spec)
        secrets = self._secrets(submission.spec.secrets)
        inputs = self._inputs.provide(submission.spec.inputs)
        claim = state.claim(self._node.config.claim)
        assert claim is not None
        write_library(self._paths.lib)
        steps = SetupSteps(self._runtime, self._paths.train_log, self._node.say, self._check_step)
        self._enter(submission, self._inputs.paths, inputs, steps)
        result = SetupResult(
            inputs,
            secrets,
            machine=claim.offering.machine,
            base=self._base(submission),
            gpus=self._runtime.gpus,
        )
        result = replace(result, environ=self._install(submission, result, steps))
        if submission.spec.setup:
            command = self._with_index(submission, self._command(submission, result, shell_argv(submission.spec.setup)))
            steps.run(Step("setup", command, "put what does not change into `environment`, which is kept"))
        steps.report()
        # The last of all: the machine may have been given its name, and its driver, by the set-up.
        host = host_names.claim_host(self._node, self._runtime, submission.spec)
        return self.count_accelerators(submission, replace(result, host=host))

    def count_accelerators(self, submission: Submission, result: SetupResult) -> SetupResult:
        """Return the result with the accelerators that are there now: a driver may arrive after the set-up."""
        contained = submission.spec.environment.container is not None
        return replace(result, gpus=self._runtime.gpus, processes=0 if contained else count_processes())

    def cut_mounts(self) -> None:
        """Cut the mounts of inputs, so that no process waits for them any more."""
        self._inputs.abort()

    def wait_for_uploads(self, until_s: Callable[[], float]) -> None:
        """Wait for uploads that go on in the background, until the monotonic time `until_s` at most."""
        if self._builder is not None:
            self._builder.wait_for_uploads(until_s)

    def _check_step(self) -> None:
        try:
            self._check()
        except BaseException:
            # The step is killed now. A process that waits for a mount that does not answer would survive SIGKILL.
            self.cut_mounts()
            raise

    def _install(self, submission: Submission, result: SetupResult, steps: SetupSteps) -> dict[str, str]:
        """Install the packages that the job asks for, in this order; return the variables of the environment."""
        wanted = submission.spec.environment
        if wanted.apt:
            # A machine that outlives its nodes belongs to a person: nothing is installed on it.
            check_only = wanted.container is None and isinstance(self._node.machine, HasEnvironmentCache)
            step = apt.install_step(
                wanted.apt, wanted.apt_mirror, self._fetch, result.base, self._paths.code, check_only=check_only
            )
            steps.run(step)
        node = replace(self._node, shelf=self._runtime.environments)
        builder = self._builder = EnvironmentBuilder(
            node,
            submission,
            steps,
            self._ask_store,
            self._check,
            self._on_wait,
            image=self._runtime.image or "",
        )
        environ: dict[str, str] = {}
        python: str | None = None
        if wanted.conda is not None:
            command = partial(self._command, submission, result)
            made = Conda(builder, command, self._fetch).make()
            environ, python = made.environ, made.python
        # The packages are installed into the environment that conda made, if it made one.
        command = partial(self._command, submission, replace(result, environ=environ))
        environ |= Packages(builder, command, self._fetch).make(python=python)
        for name in ("CONDA_PREFIX", "VIRTUAL_ENV"):
            if name in environ:
                self._runtime.hand_over(Path(environ[name]))
        return environ

    def _base(self, submission: Submission) -> dict[str, str]:
        """Return the variables of the runtime, without passwords that are not for the training."""
        private = private_variables(submission.spec.environment)
        found = self._runtime.environ(submission.environ)
        return {name: value for name, value in found.items() if name not in private}

    def _enter(
        self, submission: Submission, paths: Sequence[Path], inputs: Mapping[str, str], steps: SetupSteps
    ) -> None:
        """Open the runtime, and show it all paths outside of the node's own folder that commands need."""
        self.pulling = submission.spec.environment.container is not None
        try:
            self._runtime.open(steps.timed)
        finally:
            self.pulling = False
        spec = submission.spec
        made = job_folders.written(self._paths, spec)
        environments = self._node.environments
        confinement = job_folders.confinement(self._node, spec)
        for folder in made:
            _make_folder(folder, confinement)
        environments.mkdir(parents=True, exist_ok=True)
        local = (local_path(wanted.source) for wanted in spec.inputs.values() if wanted.mode != "stream")
        self._runtime.enter(
            RuntimeView(
                written=tuple(made),
                # Under their own paths, and under the paths that those link to.
                read=tuple(path for where in paths for path in (where, where.resolve())),
                in_place=tuple(Path(path) for path in local if path is not None),
                environments=environments,
                mounts=(
                    *sagemaker_scripts.mounts(self._paths, spec, inputs),
                    *host_names.mounts(self._node, spec),
                ),
            )
        )

    def _with_index(self, submission: Submission, command: Command) -> Command:
        """Return the command with the job's package index, so that it installs from there, too."""
        source = submission.spec.environment.index
        if source is None:
            return command
        index = PrivateIndex(source, self._fetch).for_commands()
        own = submission.spec.env
        env = {name: value for name, value in index.env.items() if name not in own}
        secrets = {name: value for name, value in index.secrets.items() if name not in own}
        return replace(command, env={**command.env, **env}, secrets={**secrets, **command.secrets})

    def _fetch(self, field: str, reference: str) -> str:
        found = self.secrets[field] = self._ask_store(lambda: fetch(field, reference, os.environ))
        return found

    def _secrets(self, references: Mapping[str, str]) -> dict[str, str]:
        """Fetch the values, anew for each attempt: tokens expire, and people change passwords."""
        found = self._ask_store(lambda: fetch_all(references, os.environ))
        self.secrets |= found
        for name in (name for name, value in found.items() if not can_mask(value)):
            self._node.say(f"secrets.{name} is shorter than {SHORTEST_BYTES} bytes, and is not masked in the log")
        return found

    def _command(self, submission: Submission, result: SetupResult, argv: tuple[str, ...]) -> Command:
        """Make a command that sees what the training will see, as far as it is known yet."""
        ranks = range(self._node.config.nodes)
        hosts = tuple(self._runtime.hostname if rank == self._node.config.rank else "" for rank in ranks)
        alone = RendezvousResult(("127.0.0.1",) * len(ranks), 0, None, hosts)
        location = make_location(self._node, submission, result, alone, 0)
        return make_command(self._node, submission, result, location, argv)


def make_location(
    node: AgentNode, submission: Submission, result: SetupResult, agreement: RendezvousResult, attempt: int
) -> TrainingLocation:
    """Make the location of one attempt, with its output folder."""
    spec, paths = submission.spec, node.paths
    outputs = job_folders.output_folder(paths, spec)
    _make_folder(outputs, job_folders.confinement(node, spec))
    return TrainingLocation(
        attempt=attempt,
        rank=node.config.rank,
        names=node_names(agreement.hosts, agreement.addresses),
        addresses=agreement.addresses,
        port=agreement.port,
        gpus=result.gpus,
        code=paths.code,
        checkpoints=job_folders.checkpoint_folder(paths, spec),
        channel=paths.channel,
        notice=paths.notice,
        inputs=result.inputs,
        outputs=outputs,
        lib=paths.lib,
        environ=result.environ,
        processes=result.processes,
    )


def _make_folder(folder: Path, confinement: Confinement | None) -> None:
    """Create a folder of the training if absent, without following links of a container."""
    if confinement is None:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        confinement.make(folder)


def make_command(
    node: AgentNode, submission: Submission, result: SetupResult, location: TrainingLocation, argv: tuple[str, ...]
) -> Command:
    """Make a command with the environment contract of the job, and write the files that it needs. May be repeated."""
    env = training_environment(result.base, submission, location)
    command = Command(argv, env, node.paths.code, result.secrets)
    if submission.spec.environment.contract is None:
        return command
    instance_type = sagemaker_machine.instance_type(node.config.provider, result.machine)
    training_job = os.environ.get("TRAINING_JOB_NAME") if node.paths.ml is not None else None
    machine = sagemaker_machine.probe_machine(location, instance_type, training_job)
    return sagemaker_scripts.apply_contract(command, submission, location, node.paths, machine)
