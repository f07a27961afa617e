"""The machines behind instances: how they come, run and go, and what Compute Engine says of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.gce import guest
from tests.support.gce.catalog import PROJECTS
from tests.support.gce.errors import Json
from tests.support.gce.instances import Goes, Instance, Instances
from tests.support.gce.metadata import Attributes, Facts, MetadataService, Notices
from tests.support.gce.operations import Operations, now
from tests.support.machines.cgroups import Cgroups
from tests.support.machines.harness import GONE
from tests.support.machines.machine import End, Machine
from tests.support.machines.network import Network

_PREEMPTED = ("compute.instances.preempted", "Instance was preempted.")
_BY_ITSELF = ("compute.instances.guestTerminate", "Instance terminated by guest OS shutdown.")
_BY_HOST = ("compute.instances.hostError", "Instance terminated by Compute Engine.")
_BY_MAINTENANCE = ("compute.instances.terminateOnHostMaintenance", "Instance terminated during host maintenance.")
_BY_TIME: dict[Goes, str] = {"delete": "compute.instances.deferredDelete", "stop": "compute.instances.deferredStop"}

# What a machine's token is asked with: the machine it is for.
Token = Callable[[Instance], "dict[str, object]"]


class Fleet:
    """The machines of one cloud. `work` is thrown away with them; consoles are kept in `consoles`."""

    def __init__(
        self,
        instances: Instances,
        operations: Operations,
        network: Network,
        cgroups: Cgroups,
        work: Path,
        consoles: Path,
        power_off_s: float,
    ) -> None:
        self._instances = instances
        self._operations = operations
        self._network = network
        self._cgroups = cgroups
        self._work = work
        self._consoles = consoles
        self._power_off_s = power_off_s
        self._files = guest.files()
        self.project_attributes: dict[str, dict[str, str]] = {name: {} for name in PROJECTS}

    # ── coming ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def boot(self, instance: Instance, token: Token) -> None:
        """Boot the machine of an instance; returns when it has power, or when it is gone again."""
        with self._instances.lock:
            if instance.goes:
                # Deleted before it came.
                self._instances.remove(instance)
                return
            instance.status = "STAGING"
            name = f"i{instance.number}"
            tree, console = instance.draft.image.tree, self._consoles / instance.number
            machine: Machine[MetadataService] = Machine(tree, self._work / name, console, self._network, self._cgroups)
            instance.machine, instance.address = machine, machine.address
        facts = _facts(instance)

        def attributes() -> Attributes:
            return Attributes(instance.attributes, self.project_attributes[instance.project])

        machine.boot(
            name,
            instance.name,
            lambda namespace: MetadataService(namespace, facts, attributes, lambda: token(instance)),
            lambda end: self._ended(instance, end),
            {**self._files, **guest.names(instance.name, facts.hostname, facts.address)},
        )
        machine.wait_up()
        with self._instances.lock:
            if instance.status == "STAGING":
                instance.status, instance.started = "RUNNING", now()
                if instance.draft.run_s is not None:
                    self._later(instance, instance.draft.run_s, self.expire)

    def _later(self, instance: Instance, in_s: float, act: Callable[[Instance], None]) -> None:
        def wait() -> None:
            assert instance.machine is not None
            if not instance.machine.gone.wait(timeout=in_s):
                act(instance)

        threading.Thread(target=wait, daemon=True).start()

    # ── going ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ended(self, instance: Instance, end: End) -> None:
        with self._instances.lock:
            if not instance.goes:
                self._record(instance, _BY_ITSELF if end == "powered off" else _BY_HOST)
            instance.stopped = now()
            if instance.goes == "delete":
                self._instances.remove(instance)
            else:
                # It is only stopped, and its disk stays.
                instance.status = "TERMINATED"
                instance.settled.set()

    def delete(self, instance: Instance) -> None:
        """Press its button, and remove it when it is off. Repeating it changes nothing."""
        with self._instances.lock:
            instance.goes = "delete"
            if instance.status == "TERMINATED":
                self._instances.remove(instance)
            elif instance.machine is not None and instance.status != "STOPPING":
                instance.status = "STOPPING"
                instance.machine.power_off(self._power_off_s)

    def stop(self, instance: Instance) -> None:
        """The same for a stop. What was stopped can be deleted, not started."""
        with self._instances.lock:
            if instance.machine is not None and instance.status == "RUNNING":
                instance.goes, instance.status = "stop", "STOPPING"
                instance.machine.power_off(self._power_off_s)

    def expire(self, instance: Instance) -> None:
        """Its longest time is over: it is stopped or deleted, as it was asked for."""
        ends = _action(instance)
        with self._instances.lock:
            if instance.status != "RUNNING":
                return
            self._record(instance, (_BY_TIME[ends], "Instance reached the end of its run duration."))
        if ends == "delete":
            self.delete(instance)
        else:
            self.stop(instance)

    def preempt(
        self, instance: Instance, *, grace_s: float, notice_s: float | None, says: bool, script: bool, button: bool
    ) -> None:
        """Take it away, as Compute Engine takes spot machines.

        `says`: the metadata tells it. `script`: there is a shutdown script to run. `button`: its power button is
        pressed at all, `notice_s` after the metadata changed (else as long as it asked for). Its power is cut after
        `grace_s` more. Repeating it changes nothing.
        """
        with self._instances.lock:
            machine = instance.machine
            if machine is None or instance.preempting or instance.status != "RUNNING":
                return
            instance.preempting = True
        wait_s = instance.draft.notice_s if notice_s is None else notice_s

        def change(notices: Notices) -> None:
            notices.preempted = says
            if not script:
                notices.withheld.add("shutdown-script")

        if machine.metadata is not None:
            machine.metadata.tell(change)
        self._record(instance, _PREEMPTED)
        threading.Thread(target=self._take, args=(instance, wait_s, grace_s, button), daemon=True).start()

    def _take(self, instance: Instance, wait_s: float, grace_s: float, button: bool) -> None:
        machine = instance.machine
        assert machine is not None
        if machine.gone.wait(timeout=wait_s):
            return
        with self._instances.lock:
            instance.goes = "delete" if instance.goes == "delete" else _action(instance)
            if instance.status == "RUNNING":
                instance.status = "STOPPING"
        if button:
            machine.power_off(grace_s)
        elif not machine.gone.wait(timeout=grace_s):
            machine.cut()

    def kill(self, instance: Instance) -> None:
        """Its host fails: the machine loses its power, without notice."""
        if instance.machine is not None:
            instance.machine.cut()

    def discard(self, instance: Instance) -> None:
        """It and its disk are there no more, at once, whatever it was."""
        with self._instances.lock:
            instance.goes = "delete"
            machine = instance.machine
        if machine is not None:
            machine.cut()
            machine.gone.wait(timeout=20)
        self._instances.remove(instance, with_disk=True)

    def announce(self, instance: Instance, event: str) -> None:
        """The metadata tells it of maintenance. None takes place."""
        service = instance.machine.metadata if instance.machine is not None else None
        if service is None:
            raise LookupError(f"{instance.id} has no metadata yet")
        service.tell(lambda notices: setattr(notices, "maintenance_event", event))

    def plan_maintenance(self, instance: Instance, start: str, status: str) -> None:
        """`upcoming-maintenance` tells it of a window; an empty `start` takes that back. None takes place."""
        service = instance.machine.metadata if instance.machine is not None else None
        if service is None:
            raise LookupError(f"{instance.id} has no metadata yet")
        planned: dict[str, object] = {
            "can_reschedule": "false",
            "latest_window_start_time": start,
            "maintenance_reasons": ["PLANNED_UPDATE"],
            "maintenance_status": status,
            "type": "SCHEDULED",
            "window_start_time": start,
        }
        service.tell(lambda notices: setattr(notices, "upcoming", planned if start else {}))

    def maintain(self, instance: Instance) -> None:
        """A maintenance event as `simulateMaintenanceEvent` makes one: spot machines are preempted by it."""
        if instance.draft.spot:
            self.preempt(instance, grace_s=30.0, notice_s=None, says=True, script=True, button=True)
            return
        if instance.draft.scheduling["onHostMaintenance"] == "MIGRATE":
            self.announce(instance, "MIGRATE_ON_HOST_MAINTENANCE")
            self._later(instance, 1.0, lambda held: self.announce(held, "NONE"))
            return
        self.announce(instance, "TERMINATE_ON_HOST_MAINTENANCE")
        self._record(instance, _BY_MAINTENANCE)
        self.stop(instance)

    def _record(self, instance: Instance, what: tuple[str, str]) -> None:
        kind, message = what
        place = f"zones/{instance.zone}"
        self._operations.record(instance.project, place, kind, instance.path, instance.number, message)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def machine(self, instance: Instance) -> Machine[MetadataService]:
        """Raises LookupError where it never had one."""
        if instance.machine is None:
            raise LookupError(f"{instance.id} has no machine")
        return instance.machine

    def console(self, instance: Instance) -> bytes:
        """What it wrote to its first serial port."""
        return instance.machine.console() if instance.machine is not None else b""

    def changed(self, instance: Instance) -> None:
        """What the metadata says of it has changed."""
        if instance.machine is not None and instance.machine.metadata is not None:
            instance.machine.metadata.tell()

    def states(self) -> dict[str, str]:
        """The status of every instance there was, by what tests call it."""
        with self._instances.lock:
            return {each.id: GONE if each.removed.is_set() else each.status for each in self._instances.ever()}

    def close(self) -> None:
        """Cut every machine's power and wait for the last."""
        machines = [each.machine for each in self._instances.ever() if each.machine is not None]
        for machine in machines:
            if not machine.gone.is_set():
                machine.cut()
        give_up = time.monotonic() + 20.0
        for machine in machines:
            machine.gone.wait(timeout=max(0.0, give_up - time.monotonic()))


def _action(instance: Instance) -> Goes:
    return "delete" if instance.draft.scheduling.get("instanceTerminationAction") == "DELETE" else "stop"


def _facts(instance: Instance) -> Facts:
    body, scheduling = instance.draft.body, instance.draft.scheduling
    account: Json = next(iter(body.get("serviceAccounts", ())), {})
    image = instance.draft.image
    return Facts(
        number=instance.number,
        name=instance.name,
        project=instance.project,
        project_number=PROJECTS[instance.project],
        zone=instance.zone,
        machine_type=instance.draft.machine.name,
        image=f"projects/{image.project}/global/images/{image.name}",
        description=body.get("description", ""),
        hostname=body.get("hostname") or f"{instance.name}.{instance.zone}.c.{instance.project}.internal",
        address=instance.address,
        has_public_address="accessConfigs" in body["networkInterfaces"][0],
        tags=tuple(body["tags"]["items"]),
        account=account.get("email", ""),
        scopes=tuple(account.get("scopes", ())),
        automatic_restart=scheduling["automaticRestart"],
        on_host_maintenance=scheduling["onHostMaintenance"],
        preemptible=scheduling["preemptible"],
        termination_action=scheduling.get("instanceTerminationAction", "STOP"),
    )
