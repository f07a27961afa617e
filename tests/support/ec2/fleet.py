"""Which machine stands behind which of moto's instances, and what EC2 says of it while it comes, runs and goes."""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tests.support.ec2.faults import Failure
from tests.support.ec2.images import IMAGES
from tests.support.ec2.metadata import Facts, MetadataService, stamp
from tests.support.machines.cgroups import Cgroups
from tests.support.machines.machine import End, Machine
from tests.support.machines.network import Network

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}

_BY_USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
_BY_ITSELF = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
_BY_SPOT = ("Server.SpotInstanceTermination", "Spot instance termination")
# No reason is documented for the end of a capacity block.
_BY_BLOCK = ("Server.CapacityBlockEnded", "Capacity block ended")
_BY_FAILURE = ("Server.InternalError", "Internal error")


@dataclass
class _Held:
    instance: Any
    machine: Machine[MetadataService]
    # Why it goes, where EC2 knows before it is gone.
    reason: tuple[str, str] | None = None
    stopping: bool = False


class Fleet:
    """The machines of one cloud. `work` is thrown away with them; consoles are kept in `consoles`."""

    def __init__(self, network: Network, cgroups: Cgroups, work: Path, consoles: Path, power_off_s: float) -> None:
        self._network = network
        self._cgroups = cgroups
        self._work = work
        self._consoles = consoles
        self._power_off_s = power_off_s
        self._lock = threading.RLock()
        self._held: dict[str, _Held] = {}

    def launch(self, instance: Any) -> None:
        """Boot the machine of an instance that moto has just made. The instance is `pending` until it has power."""
        tree = next((image.tree for image in IMAGES if image.ami == instance.image_id), None)
        if tree is None:
            raise Failure("Unsupported", f"the fake EC2 has no machine for {instance.image_id}")
        folder, console = self._work / instance.id, self._consoles / instance.id
        machine: Machine[MetadataService] = Machine(tree, folder, console, self._network, self._cgroups)
        _set_address(instance, machine.address)
        _set_state(instance, "pending")
        facts, held = _facts(instance, machine.address), _Held(instance, machine)
        with self._lock:
            self._held[instance.id] = held
        threading.Thread(target=self._boot, args=(held, facts), daemon=True).start()

    def _boot(self, held: _Held, facts: Facts) -> None:
        instance = held.instance

        def tags() -> dict[str, str]:
            return {tag["key"]: tag["value"] for tag in instance.get_tags()}

        held.machine.boot(
            facts.instance,
            f"ip-{facts.address.replace('.', '-')}",
            lambda namespace: MetadataService(namespace, facts, tags),
            lambda end: self._ended(held, end),
        )
        held.machine.wait_up()
        with self._lock:
            if instance.state == "pending":
                _set_state(instance, "running")

    def _ended(self, held: _Held, end: End) -> None:
        instance = held.instance
        with self._lock:
            by_itself = end == "powered off" and held.reason is None
            reason = held.reason or (_BY_ITSELF if by_itself else _BY_FAILURE)
            stops = held.stopping or (by_itself and instance.instance_initiated_shutdown_behavior == "stop")
            if stops:
                _set_state(instance, "stopped")
            else:
                # This also takes its volumes along, those that go with the machine.
                instance.terminate()
            _set_reason(instance, reason)

    def terminate(self, instance: Any) -> tuple[str, str]:
        """Press the machine's button; its state before and now. Repeating it changes nothing."""
        with self._lock:
            before: str = instance.state
            if before in ("pending", "running", "stopping"):
                held = self._held[instance.id]
                held.reason, held.stopping = _BY_USER, False
                _set_state(instance, "shutting-down")
                held.machine.power_off(self._power_off_s)
            elif before == "stopped":
                instance.terminate()
            return before, instance.state

    def stop(self, instance: Any) -> tuple[str, str]:
        """The same for StopInstances. What was stopped can be terminated, not started."""
        with self._lock:
            before: str = instance.state
            if before in ("pending", "running"):
                held = self._held[instance.id]
                held.reason, held.stopping = _BY_USER, True
                _set_state(instance, "stopping")
                held.machine.power_off(self._power_off_s)
            return before, instance.state

    def used(self, reservation: str) -> int:
        """How many instances are in a reservation: those that have not ended take its capacity."""
        with self._lock:
            return sum(1 for each in self._held.values() if _is_in(each.instance, reservation))

    def end_block(self, reservation: str) -> None:
        """Begin to terminate the instances in a capacity block."""
        with self._lock:
            for held in self._held.values():
                if _is_in(held.instance, reservation) and held.instance.state in ("pending", "running"):
                    held.reason, held.stopping = held.reason or _BY_BLOCK, False
                    _set_state(held.instance, "shutting-down")
                    held.machine.power_off(self._power_off_s)

    def kill(self, instance_id: str) -> None:
        """The machine loses its power, without notice."""
        held = self._find(instance_id)
        with self._lock:
            held.reason = held.reason or (_BY_SPOT if held.instance.lifecycle == "spot" else _BY_FAILURE)
        held.machine.cut()

    def notice(self, instance_id: str, action: str, in_s: float) -> None:
        """Tell the machine that it will be taken, and take it then."""
        held = self._find(instance_id)
        service = held.machine.metadata
        if service is None:
            raise LookupError(f"{instance_id} has no metadata yet")
        when = datetime.now(timezone.utc) + timedelta(seconds=in_s)
        service.notices.instance_action = {"action": action, "time": stamp(when)}
        threading.Thread(target=self._take, args=(held, action, time.monotonic() + in_s), daemon=True).start()

    def _take(self, held: _Held, action: str, at: float) -> None:
        if held.machine.gone.wait(timeout=max(0.0, at - time.monotonic())):
            return
        with self._lock:
            if held.instance.state != "running":
                return
            held.reason, held.stopping = _BY_SPOT, action != "terminate"
            _set_state(held.instance, "stopping" if held.stopping else "shutting-down")
            held.machine.power_off(self._power_off_s)

    def rebalance(self, instance_id: str) -> None:
        """Recommend to the machine that its work moves."""
        service = self._find(instance_id).machine.metadata
        assert service is not None
        service.notices.rebalance_at = stamp(datetime.now(timezone.utc))

    def maintenance(self, instance_id: str, code: str, in_s: float) -> None:
        """Schedule an event for the machine. Nothing is done to it."""
        service = self._find(instance_id).machine.metadata
        assert service is not None
        begins = datetime.now(timezone.utc) + timedelta(seconds=in_s)
        event = {
            "NotBefore": begins.strftime("%d %b %Y %H:%M:%S GMT"),
            "NotAfter": (begins + timedelta(hours=2)).strftime("%d %b %Y %H:%M:%S GMT"),
            "Code": code,
            "Description": "scheduled maintenance",
            "EventId": f"instance-event-{instance_id[2:]}",
            "State": "active",
        }
        service.notices.maintenance = [event]

    def machine(self, instance_id: str) -> Machine[MetadataService]:
        """Raises LookupError if there never was such a machine."""
        return self._find(instance_id).machine

    def _find(self, instance_id: str) -> _Held:
        with self._lock:
            if instance_id not in self._held:
                raise LookupError(f"there is no machine {instance_id}")
            return self._held[instance_id]

    def states(self) -> dict[str, str]:
        """The state of every instance there was."""
        with self._lock:
            return {instance_id: held.instance.state for instance_id, held in self._held.items()}

    def close(self) -> None:
        """Cut every machine's power and wait for the last."""
        with self._lock:
            machines = [held.machine for held in self._held.values()]
        for machine in machines:
            if not machine.gone.is_set():
                machine.cut()
        for machine in machines:
            machine.gone.wait(timeout=20)


def _is_in(instance: Any, reservation: str) -> bool:
    return getattr(instance, "capacity_reservation_id", None) == reservation and instance.state != "terminated"


def user_data(instance: Any) -> bytes:
    """What the instance was launched with, as the machine gets it."""
    return base64.b64decode(str(instance.user_data)) if instance.user_data else b""


def _facts(instance: Any, address: str) -> Facts:
    backend = instance.ec2_backend
    profile = backend.iam_instance_profile_associations.get(instance.id)
    roles = profile.iam_instance_profile.roles if profile is not None else ()
    key = backend.key_pairs.get(instance.key_name)
    return Facts(
        instance=instance.id,
        ami=instance.image_id,
        machine_type=instance.instance_type,
        launch_index=instance.ami_launch_index,
        address=address,
        region=backend.region_name,
        zone=instance.placement.zone,
        lifecycle=instance.lifecycle or "on-demand",
        account=backend.account_id,
        role=roles[0].name if roles else "",
        user_data=user_data(instance),
        public_key=key.public_key if key is not None else "",
        tokens_required=instance.metadata_options.http_tokens == "required",
        tags_readable=instance.metadata_options.instance_metadata_tags == "enabled",
    )


def _set_address(instance: Any, address: str) -> None:
    card = instance.nics[0]
    card.private_ip_address = address
    card.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    # A machine that has a public address can be reached there. Here it is the only one that there is.
    if card.public_ip:
        card.public_ip = address


def _set_state(instance: Any, state: str) -> None:
    instance._state.name, instance._state.code = state, CODES[state]


def _set_reason(instance: Any, reason: tuple[str, str]) -> None:
    code, message = reason
    instance.state_reason.code, instance.state_reason.message = code, f"{code}: {message}"
    at = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S GMT")
    instance._reason = f"{message} ({at})"


def unknown_instance(instance_id: str) -> Failure:
    """What EC2 says of an instance that it does not know."""
    return Failure("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
