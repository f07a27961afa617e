"""A container as the runtime of set-up and training. The package's docstring gives an overview."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.agent.container import create_command, host_devices
from stoker.agent.container.container_user import ContainerUser
from stoker.agent.container.engine import FIELD, Engine, EngineResult, describe_refusal
from stoker.agent.container.images import JobImage, LocalImage
from stoker.agent.container.pipes import START_COMMAND, ContainerPipes, path_inside
from stoker.agent.container.process_group import ContainerGroup, ContainerRun, RunningContainer
from stoker.agent.container.symlinks import MAX_SCANNED, LinkTargets
from stoker.agent.environment.local_cache import prune_user_caches
from stoker.agent.host_names import container_hostname
from stoker.agent.node import AgentNode, AskStore
from stoker.agent.runtime import Command, RuntimeView, StepTimer
from stoker.model import codec
from stoker.model.errors import CodecError, SetupFailed
from stoker.model.submission import Submission
from stoker.processes import Process
from stoker.processes.container_sweep import container_name, remove
from stoker.providers import registry
from stoker.secrets.masked_output import Run, open_output

# Variables of this machine that have the same meaning in the container.
_PASSED_ON = (
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_REGION",
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
    *(name for word in ("http_proxy", "https_proxy", "no_proxy") for name in (word, word.upper())),
)
# Variables of the submitter that refer to programs of the submitter's computer.
_OF_THE_HOST = frozenset({"PATH", "VIRTUAL_ENV", "CONDA_PREFIX"})
_LOST = "the container was ended from outside"
_KILLED = 128 + signal.SIGKILL


class ContainerRuntime:
    """The container of one run of an agent: implements `Runtime`."""

    def __init__(self, node: AgentNode, submission: Submission, ask: AskStore, check: Callable[[], None]) -> None:
        spec = submission.spec.environment.container
        assert spec is not None
        self._spec = spec
        self._wants_gpus = submission.spec.resources.gpus is not None
        self._node = node
        self._root = node.paths.root
        runs_locally = registry.capabilities(node.config.provider).runs_locally
        self._engine = Engine(spec.engine, check, node.say, runs_locally=runs_locally)
        self._job_image = JobImage(node, spec, self._engine, ask, check)
        self._name = container_name(self._root)
        self._pipes = ContainerPipes(self._root / "pipes")
        self._host = host_devices.detect_host(spec.engine)
        self._image: LocalImage | None = None
        self._user = ContainerUser(self._engine.program, self._pipes.folder)
        self._written: tuple[Path, ...] = ()
        self.hostname = ""
        self._fault: str | None = None
        self.group = ContainerGroup(lambda: remove(spec.engine, self._name))

    # ── Before the container exists ───────────────────────────────────────────────────────────────────────────────────

    @property
    def image(self) -> str | None:
        """The digest or id of the image, once it is known."""
        return self._image.identity if self._image is not None else None

    @property
    def gpus(self) -> int:
        return create_command.visible_gpus(self._spec.run, self._host)

    @property
    def fault(self) -> str | None:
        return self._fault

    def environ(self, submitted: Mapping[str, str]) -> dict[str, str]:
        found = dict(self._image.environ) if self._image is not None else {}
        found |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if create_command.sees_all_gpus(self._spec.run, self._host) and "CUDA_VISIBLE_DEVICES" in os.environ:
            found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        found |= {name: value for name, value in submitted.items() if name not in _OF_THE_HOST}
        if create_command.runs_as_agent_user(self._plan(RuntimeView()), self._host):
            # The image has no user with this uid, and so no home.
            found["HOME"] = str(self._home)
        return found

    def open(self, timed: StepTimer) -> None:
        """Fetch the image. Raises SetupFailed, and whatever the checks raise."""
        if self._wants_gpus and self._host.gpus and not self.gpus:
            raise SetupFailed(
                f"{FIELD}: the container would see no GPU: the NVIDIA Container Toolkit is not on this machine; choose "
                f"an image that has it (resources.image), or leave resources.gpus out",
                user=True,
            )
        self._image = self._job_image.fetch(timed)

    # ── Creation ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, view: RuntimeView) -> None:
        """Create and start the container, with the node's folder and this view. Raises SetupFailed."""
        self._pipes.open()
        # A folder inside another one is covered by it, and a link in its place is not followed.
        self._written = tuple(create_command.outermost((self._root, *view.written)))
        if not self._host.privileged:
            self._detect_rootless()
        for folder in self._writable():
            if folder != self._node.paths.train_log:
                folder.mkdir(parents=True, exist_ok=True)
        plan = self._with_links(self._plan(view), view.in_place)
        self._create(create_command.arguments(plan, self._host))
        started = self._engine.run("start", self._name)
        if started.code:
            raise self._refused(started)
        found = self._inspect()
        hostname = self._pipes.wait_started(lambda: Process.of(found[1]) is None) if found is not None else None
        if found is None or hostname is None:
            raise self._ended_at_once(plan)
        self.hostname = hostname
        identity, init = found
        self.group.container = RunningContainer.of(identity, init)
        self._user.adopt(init, self._host, view.environments)
        if view.environments is not None:
            prune_user_caches(view.environments)

    def _create(self, arguments: list[str]) -> None:
        made = self._engine.run(*arguments)
        if made.code and "already in use" in made.err:
            remove(self._engine.program, self._name)
            made = self._engine.run(*arguments)
        if made.code:
            raise self._refused(made)

    def _ended_at_once(self, plan: create_command.ContainerPlan) -> SetupFailed:
        """Find out why the container ended, with a second one that exits at once.

        The first one is removed by the engine and left no output.
        """
        remove(self._engine.program, self._name)
        self._create(create_command.arguments(plan, self._host, script="exit 0"))
        ran = self._engine.run("start", "--attach", self._name)
        what = f"{FIELD}: the container ended at once"
        if ran.code == 0:
            return SetupFailed(f"{what}, but a second one did not", user=False)
        if "exec sh failed" in ran.err:
            what = f"{FIELD}.image: there is no `sh` in {self._spec.image}, which a training needs"
        elif ran.code == _KILLED:
            what = f"{what}: it was killed; is there enough memory for it?"
        return SetupFailed(f"{what} (exit code {ran.code}): {ran.message}", user=not ran.unreachable)

    def _with_links(self, plan: create_command.ContainerPlan, in_place: Sequence[Path]) -> create_command.ContainerPlan:
        targets = LinkTargets(create_command.mount_targets(plan))
        for folder in in_place:
            targets.follow(folder)
        if not targets.complete:
            self._node.say(f"inputs: only the first {MAX_SCANNED:,} files were searched for links that lead elsewhere")
        return replace(plan, mounts=(*plan.mounts, *targets.mounts))

    def _detect_rootless(self) -> None:
        if self._engine.program == "docker":
            options = self._engine.run("info", "--format={{.SecurityOptions}}").out
            self._host = replace(self._host, rootless="rootless" in options)

    def _plan(self, view: RuntimeView) -> create_command.ContainerPlan:
        config = self._node.config
        labels = {"stoker.job": config.job, "stoker.node": config.instance, "stoker.rank": str(config.rank)}
        return create_command.ContainerPlan(
            engine=self._engine.program,
            name=self._name,
            image=self._image.id if self._image is not None else self._spec.image,
            pipes=self._pipes.folder,
            labels=labels,
            folders=(*self._writable(), *view.written, *((view.environments,) if view.environments else ())),
            # The node's own files belong to the agent, which opens them by name: its configuration, records and drafts.
            read=(self._root, *view.read),
            mounts=view.mounts,
            run=self._spec.run,
            hostname=container_hostname(config),
        )

    def _writable(self) -> tuple[Path, ...]:
        """Return the paths in the node's folder that commands write to.

        Their log is its own mount, which cannot be replaced.
        """
        paths = self._node.paths
        found = (paths.code, paths.channel, paths.inputs, paths.environments)
        return (*found, paths.train_log, *(() if self._host.privileged else (self._home,)))

    def _inspect(self) -> tuple[str, int] | None:
        """Return the engine's id of the container and its first pid; None if it is gone already."""
        answer = self._engine.run("inspect", "--type=container", self._name)
        try:
            found = codec.parse(answer.out)[0]
            return str(found["Id"]), int(found["State"]["Pid"])
        except (CodecError, ValueError, LookupError, TypeError):
            if answer.unreachable:
                raise self._refused(answer) from None
            return None

    def _refused(self, answer: EngineResult) -> SetupFailed:
        """Blame the user's settings for a refusal by the engine, unless the engine did not answer."""
        what = describe_refusal(self._engine, answer, self._spec.run)
        if '"sh"' in answer.err:
            what = f"{FIELD}.image: there is no `sh` in {self._spec.image}, which a training needs: {answer.message}"
        if answer.disk_full:
            what = f"{what}; {self._engine.disk_advice}"
        return SetupFailed(what, user=not answer.unreachable)

    @property
    def _home(self) -> Path:
        return self._root / "home"

    # ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def spawn(self, command: Command, log: Path) -> Run:
        container = self.group.container
        if container is None:
            raise SetupFailed(f"{FIELD}: the container does not exist", user=False)
        argv = command.argv
        if command.main and self._spec.entrypoint and self._image is not None:
            argv = (*self._image.entrypoint, *argv)
        self._user.give(*self._written, *self._user.tools)
        command_pipes = self._pipes.command_pipes()
        try:
            # Of the node's own files the container may write to the training log alone.
            piped = log != self._node.paths.train_log
            with (
                open_output(log, command.secrets, command_pipes.out, piped=piped) as output,
                tempfile.TemporaryFile() as errors,
            ):
                out = path_inside(command_pipes.out) if output.masked else str(log)
                words = [path_inside(command_pipes.exports), out, path_inside(command_pipes.reply), *argv]
                user = ("--user=0",) if command.root else ()
                arguments = (
                    "exec",
                    f"--workdir={command.cwd}",
                    *user,
                    self._name,
                    "sh",
                    "-c",
                    START_COMMAND,
                    "stoker",
                    *words,
                )
                client = self._engine.spawn(arguments, stderr=errors)
                reply = command_pipes.send_variables(
                    {**command.env, **command.secrets}, lambda: client.poll() is not None
                )
                if reply is None or not reply.isdigit():
                    code = client.wait()
                    if reply == "missing":
                        raise FileNotFoundError(2, "no such program", argv[0])
                    errors.seek(0)
                    raise self._start_failure(EngineResult(code, "", errors.read().decode(errors="replace")))
                pid = container.find_pid(int(reply))
                self.group.add(pid)
                return output.of(ContainerRun(client, pid, self._why_gone))
        finally:
            command_pipes.close()

    def _start_failure(self, answer: EngineResult) -> SetupFailed:
        gone = self._why_gone(answer.code)
        return SetupFailed(f"{FIELD}: {gone or answer.message}", user=gone is None and not answer.unreachable)

    def _why_gone(self, code: int) -> str | None:
        """After a command ended: return what happened to the container, or None if it still runs."""
        if code == 0:
            return None
        answer = self._engine.run("inspect", "--type=container", "--format={{.State.Running}}", self._name)
        if answer.unreachable:
            self._fault = f"{self._engine.program} stopped answering: {answer.message}"
        elif answer.out.strip() != "true":
            self._fault = _LOST
        return self._fault

    @property
    def environments(self) -> Path | None:
        return self._user.environments

    def hand_over(self, environment: Path) -> None:
        # An environment in the node's own folder is covered by that folder.
        if self.environments is not None and environment.is_relative_to(self.environments):
            self._user.give(environment)

    def begin_close(self) -> None:
        self.group.kill()
        # The container's first program ends with this, and the engine removes the container.
        self._pipes.close()

    def close(self) -> None:
        # Not waited for: containers that remain are swept by the provider, and a cloud machine is about to be turned
        # off. The next attempt waits for this node to be gone.
        self.begin_close()
