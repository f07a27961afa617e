"""A container as an enclosure: see the package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from stoker.agent.container import create_command, host_devices, registry_login, user_cache
from stoker.agent.container.chown import Giving
from stoker.agent.container.engine import FIELD, Answer, Engine
from stoker.agent.container.field_errors import complaint
from stoker.agent.container.images import Image, Images
from stoker.agent.container.pipes import ENTER, Door, inside
from stoker.agent.container.process_group import Cell, ContainerGroup
from stoker.agent.container.registry_login import Login
from stoker.agent.container.symlinks import MOST_LOOKED_AT, Leads
from stoker.agent.node import Ask, Node
from stoker.agent.rendezvous import sleep_interruptibly
from stoker.agent.runtime import Command, View
from stoker.model import codec, dlc_images, keys
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import ImageFact
from stoker.model.observed import Known
from stoker.model.spec import Submission
from stoker.processes import Process
from stoker.processes.container_sweep import Record, container_name, remove, write_record
from stoker.processes.unmounting import mounted_below
from stoker.secrets.fetch_secrets import fetch
from stoker.secrets.masked_output import Run, open_output
from stoker.store.node_facts import read_fact

# Of this machine's variables, those that mean the same inside.
_PASSED_ON = (
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_REGION",
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
    *(name for word in ("http_proxy", "https_proxy", "no_proxy") for name in (word, word.upper())),
)
# Of the submitter's, those that mean its own programs.
_OF_THE_HOST = frozenset({"PATH", "VIRTUAL_ENV", "CONDA_PREFIX"})
_LOST = "the container was ended from outside"
_KILLED = 128 + signal.SIGKILL
# How long the engine may take to tell that a command is dead which the kernel knows to be.
_CLIENT_S = 15.0


class Container:
    """One for each life of an agent."""

    def __init__(self, node: Node, submission: Submission, ask: Ask, check: Callable[[], None]) -> None:
        spec = submission.spec.environment.container
        assert spec is not None
        self._spec = spec
        self._wants_gpus = submission.spec.resources.gpus is not None
        self._node = node
        self._root = node.paths.root
        self._ask = ask
        self._pause = partial(sleep_interruptibly, check=check)
        self._engine = Engine(spec.engine, check, node.say, here=node.config.provider == "local")
        self._name = container_name(self._root)
        self._door = Door(self._root / "door")
        self._around = host_devices.look(spec.engine)
        self._image: Image | None = None
        # For whoever it runs as, if that is another user than the agent.
        self._giving: Giving | None = None
        self._written: tuple[Path, ...] = ()
        self.environments: Path | None = None
        self._fault: str | None = None
        self.group = ContainerGroup(lambda: remove(spec.engine, self._name))

    # ── Before it is there ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def image(self) -> str | None:
        """What names the very bytes of its image, once that is known."""
        return self._image.known_as if self._image is not None else None

    @property
    def gpus(self) -> int:
        return create_command.visible_gpus(self._spec.run, self._around)

    @property
    def fault(self) -> str | None:
        return self._fault

    def environ(self, submitted: Mapping[str, str]) -> dict[str, str]:
        found = dict(self._image.environ) if self._image is not None else {}
        found |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if create_command.sees_all_gpus(self._spec.run, self._around) and "CUDA_VISIBLE_DEVICES" in os.environ:
            found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        found |= {name: value for name, value in submitted.items() if name not in _OF_THE_HOST}
        if create_command.chooses_user(self._blueprint(View()), self._around):
            # Nobody of that number lives in the image.
            found["HOME"] = str(self._home)
        return found

    def open(self, timed: Callable[[str, str], AbstractContextManager[None]]) -> None:
        """Have the image here. Raises SetupFailed, and whatever the checks raise."""
        if self._wants_gpus and self._around.gpus and not self.gpus:
            raise SetupFailed(
                f"{FIELD}: the container would see no GPU: the NVIDIA Container Toolkit is not on this machine; choose "
                f"an image that has it (resources.image), or leave resources.gpus out",
                user=True,
            )
        self._private = registry_login.private_place(os.environ) / self._name
        name = dlc_images.resolve(
            self._spec.image, os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        before = self._recorded()
        write_record(self._root, Record(self._engine.program, str(self._private)))
        images = Images(self._engine, self._login, self._private, self._node.say, timed, self._pause)
        self._image = images.bring(name, before)
        if before is None:
            self._image = self._record(self._image, images)
        self._node.say(f"container: {name} ({self._image.known_as})" if name != self.image else f"container: {name}")

    def _recorded(self) -> ImageFact | None:
        """What an earlier attempt, or another node of this one, has taken the name for."""
        found = self._ask(lambda: read_fact(self._node.store, keys.image(self._node.config.job), ImageFact))
        return found.value.value if isinstance(found, Known) and found.value is not None else None

    def _record(self, image: Image, images: Images) -> Image:
        """The first one counts, for all nodes."""
        key, data = keys.image(self._node.config.job), codec.dumps(image.fact)
        if self._ask(lambda: self._node.store.create(key, data)):
            return image
        first = self._recorded()
        return image if first is None or first == image.fact else images.bring(image.name, first)

    def _login(self, reference: str) -> Login | None:
        """A password for the registry of an image, anew for each pull: tokens expire. Raises SetupFailed."""
        where = registry_login.registry_of(reference)
        reference_to, field = self._spec.secret, f"{FIELD}.secret"
        if reference_to is None:
            reference_to, field = registry_login.reference_of(where), f"{FIELD}.image"
            if reference_to is None or registry_login.knows(where, os.environ):
                return None
        secret = self._ask(lambda: fetch(field, reference_to, os.environ))
        return registry_login.make_login(where, secret, field)

    # ── Making it ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, view: View) -> None:
        """Make it and start it, with the node's folder and this. Raises SetupFailed."""
        self._door.open()
        # What lies in another one goes with that, and a link in its place is not followed.
        self._written = tuple(create_command.outermost((self._root, *view.written)))
        if not self._around.privileged:
            self._look_for_own_daemon()
        for folder in self._writable():
            if folder != self._node.paths.train_log:
                folder.mkdir(parents=True, exist_ok=True)
        plan = self._with_links(self._blueprint(view), view.in_place)
        self._make(create_command.arguments(plan, self._around))
        started = self._engine.ask("start", self._name)
        if started.code:
            raise self._refused(started)
        found = self._inspect()
        if found is None or not self._door.hear_begun(lambda: Process.of(found[1]) is None):
            raise self._ended_at_once(plan)
        identity, init = found
        self.group.cell = Cell.of(identity, init)
        self._settle_owner(init, view.environments)
        if view.environments is not None:
            user_cache.prune(view.environments)

    def _make(self, arguments: list[str]) -> None:
        made = self._engine.ask(*arguments)
        if made.code and "already in use" in made.err:
            remove(self._engine.program, self._name)
            made = self._engine.ask(*arguments)
        if made.code:
            raise self._refused(made)

    def _ended_at_once(self, plan: create_command.Blueprint) -> SetupFailed:
        """Why, from another one that has nothing to do: the first is off the disk, and what it said was not kept."""
        remove(self._engine.program, self._name)
        self._make(create_command.arguments(plan, self._around, script="exit 0"))
        ran = self._engine.ask("start", "--attach", self._name)
        what = f"{FIELD}: the container ended at once"
        if ran.code == 0:
            return SetupFailed(f"{what}, and another one did not", user=False)
        if "exec sh failed" in ran.err:
            what = f"{FIELD}.image: there is no `sh` in {self._spec.image}, which a training needs"
        elif ran.code == _KILLED:
            what = f"{what}: it was killed; is there enough memory for it?"
        return SetupFailed(f"{what} (exit code {ran.code}): {ran.said}", user=not ran.away)

    def _with_links(self, plan: create_command.Blueprint, in_place: Sequence[Path]) -> create_command.Blueprint:
        leads = Leads(create_command.places(plan))
        for folder in in_place:
            leads.follow(folder)
        if not leads.whole:
            self._node.say(
                f"inputs: only the first {MOST_LOOKED_AT:,} files were looked at for links that lead elsewhere"
            )
        return replace(plan, mounts=(*plan.mounts, *leads.mounts))

    def _look_for_own_daemon(self) -> None:
        if self._engine.program == "docker":
            options = self._engine.ask("info", "--format={{.SecurityOptions}}").out
            self._around = replace(self._around, rootless="rootless" in options)

    def _blueprint(self, view: View) -> create_command.Blueprint:
        config = self._node.config
        labels = {"stoker.job": config.job, "stoker.node": config.instance, "stoker.rank": str(config.rank)}
        return create_command.Blueprint(
            engine=self._engine.program,
            name=self._name,
            image=self._image.id if self._image is not None else self._spec.image,
            door=self._door.folder,
            labels=labels,
            folders=(*self._writable(), *view.written, *((view.environments,) if view.environments else ())),
            # The node's own files are the agent's, which opens them by name: what made it, its records, its drafts.
            read=(self._root, *view.read),
            mounts=view.mounts,
            run=self._spec.run,
        )

    def _writable(self) -> tuple[Path, ...]:
        """What of the node's folder commands write to. Their log is a mount of its own, which cannot be replaced."""
        paths = self._node.paths
        found = (paths.code, paths.channel, paths.inputs, paths.environments)
        return (*found, paths.train_log, *(() if self._around.privileged else (self._home,)))

    def _inspect(self) -> tuple[str, int] | None:
        """What the engine calls it, and its first process; None where it is gone already."""
        answer = self._engine.ask("inspect", "--type=container", self._name)
        try:
            found = json.loads(answer.out)[0]
            return str(found["Id"]), int(found["State"]["Pid"])
        except (ValueError, LookupError, TypeError):
            if answer.away:
                raise self._refused(answer) from None
            return None

    def _refused(self, answer: Answer) -> SetupFailed:
        """What the engine does not like is what the person wrote, unless it was not there to ask."""
        what = complaint(self._engine, answer, self._spec.run)
        if '"sh"' in answer.err:
            what = f"{FIELD}.image: there is no `sh` in {self._spec.image}, which a training needs: {answer.said}"
        if answer.full:
            what = f"{what}; {self._engine.room}"
        return SetupFailed(what, user=not answer.away)

    def _settle_owner(self, init: int, environments: Path | None) -> None:
        """Whoever the container runs as must be somebody whom this agent can save, signal and clean up after."""
        try:
            seen = os.stat(f"/proc/{init}")  # noqa: PTH116 - no path
        except OSError:
            raise SetupFailed(
                f"{FIELD}: {self._engine.program} does not run on this machine: its processes are not here", user=True
            ) from None
        if seen.st_uid == self._around.uid:
            return
        if not self._around.privileged:
            raise SetupFailed(
                f"{FIELD}.run.user: only root could save and remove what another user of the container writes, and "
                f"this agent is the user {self._around.uid}; leave it out",
                user=True,
            )
        self._giving = Giving(seen.st_uid, seen.st_gid)
        if environments is not None:
            self.environments = user_cache.open_shelf(environments, seen.st_uid, seen.st_gid)

    @property
    def _home(self) -> Path:
        return self._root / "home"

    # ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def spawn(self, command: Command, log: Path) -> Run:
        cell = self.group.cell
        if cell is None:
            raise SetupFailed(f"{FIELD}: the container is not there", user=False)
        argv = command.argv
        if command.main and self._spec.entrypoint and self._image is not None:
            argv = (*self._image.entrypoint, *argv)
        self._give_away()
        entrance = self._door.entrance()
        try:
            # Of the node's own files it may write to this one alone.
            piped = log != self._node.paths.train_log
            with (
                open_output(log, command.secrets, entrance.out, piped=piped) as output,
                tempfile.TemporaryFile() as complaints,
            ):
                out = inside(entrance.out) if output.masked else str(log)
                words = [inside(entrance.words), out, inside(entrance.reply), *argv]
                user = ("--user=0",) if command.root else ()
                arguments = ("exec", f"--workdir={command.cwd}", *user, self._name, "sh", "-c", ENTER, "stoker", *words)
                client = self._engine.spawn(arguments, stderr=complaints)
                said = entrance.pass_in({**command.env, **command.secrets}, lambda: client.poll() is not None)
                if said is None or not said.isdigit():
                    code = client.wait()
                    if said == "missing":
                        raise FileNotFoundError(2, "no such program", argv[0])
                    complaints.seek(0)
                    raise self._not_begun(Answer(code, "", complaints.read().decode(errors="replace")))
                pid = cell.find(int(said))
                self.group.add(pid)
                return output.of(ContainerRun(client, pid, self._why_gone))
        finally:
            entrance.close()

    def _not_begun(self, answer: Answer) -> SetupFailed:
        gone = self._why_gone(answer.code)
        return SetupFailed(f"{FIELD}: {gone or answer.said}", user=gone is None and not answer.away)

    def _why_gone(self, code: int) -> str | None:
        """After a command ended: None while the container is there; else what happened to it."""
        if code == 0:
            return None
        answer = self._engine.ask("inspect", "--type=container", "--format={{.State.Running}}", self._name)
        if answer.away:
            self._fault = f"{self._engine.program} went away: {answer.said}"
        elif answer.out.strip() != "true":
            self._fault = _LOST
        return self._fault

    def _give_away(self) -> None:
        """Let a container that runs as another user write where a training writes."""
        tools = (self.environments / "tools",) if self.environments is not None else ()
        for top in (*self._written, *tools):
            self._give(top)

    def hand_over(self, environment: Path) -> None:
        # One in the node's own folder goes with that.
        if self.environments is not None and environment.is_relative_to(self.environments):
            self._give(environment)

    def _give(self, top: Path) -> None:
        if self._giving is None:
            return
        top = top.resolve()
        try:
            # A bucket that is mounted is nobody's to give away, and the door is the agent's.
            self._giving.give(top, {*mounted_below(top), str(self._door.folder.resolve())} - {str(top)})
        except OSError as error:
            raise SetupFailed(
                f"{FIELD}: {error.filename or top} cannot be given to the user of the container: {error.strerror}",
                user=True,
            ) from error

    def leave(self) -> None:
        self.group.kill()
        # Its first program ends with this, and the engine takes it off the disk.
        self._door.close()

    def close(self) -> None:
        # Not waited for: whoever looks after the machine sweeps, and a machine of a cloud is about to be off. The
        # next attempt waits for this node to be gone.
        self.leave()


class ContainerRun:
    """A command in a container, and the engine's client that waits for its end."""

    def __init__(self, client: subprocess.Popen[bytes], pid: int, why_gone: Callable[[int], str | None]) -> None:
        self._client = client
        self._why_gone = why_gone
        self._code: int | None = None
        self.pid = pid
        self._process = Process.of(pid) if pid else None

    def poll(self) -> int | None:
        if self._code is None and self._client.poll() is not None:
            if self._process is not None and self._process.alive and self._why_gone(1) is None:
                return None  # The client was killed, not the command, which nobody else can tell the end of.
            self._code = self._client.returncode if self._client.returncode >= 0 else 137
            self._why_gone(self._code)
        return self._code

    def wait(self) -> int:
        dead_s: float | None = None
        while (code := self.poll()) is None:
            if self._process is None or not self._process.alive:
                dead_s = dead_s or time.monotonic()
                if time.monotonic() - dead_s > _CLIENT_S:
                    self._client.kill()
            time.sleep(0.005)
        return code
