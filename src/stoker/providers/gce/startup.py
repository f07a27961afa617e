"""The scripts in a machine's metadata: one turns it into a node, one runs in its last seconds. Pure."""

from __future__ import annotations

from functools import lru_cache

from stoker.model.errors import UserError
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.providers.boot import script
from stoker.providers.boot.script import BootSettings
from stoker.providers.gce import names, tpu
from stoker.providers.gce.places import ProjectRegion

# The longest value in the metadata:
# https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations
MOST_BYTES = 256 * 1024
# Usually the platform ends the wait long before. The number is that of `TimeoutStopSec` in
# stoker.providers.boot.install.
_SAVING_S = 90


def startup_script(order: LaunchOrder) -> str:
    """The startup script, which runs at every boot and recognises the first one.

    Raises UserError for a store that a machine cannot reach.
    """
    registry.check_store("gce", order.store)
    text = script.render(boot(order), payload(), gives_back=True)
    if len(text.encode()) > MOST_BYTES:
        raise UserError(
            f"the startup script has {len(text.encode())} bytes and Compute Engine takes {MOST_BYTES}; "
            "shorten the job's name or its store"
        )
    return text


def boot(order: LaunchOrder) -> BootSettings:
    """The machine's boot configuration. The machine finds its rank by its name."""
    project = ProjectRegion.of(order.offering.region or "").project
    chips = tpu.slice_of(order.offering.machine)
    # The training inherits the agent's variables, and the job's own `env` comes last.
    environ = {**(chips.environ if chips is not None else {}), **order.environ}
    gce = order.spec.resources.gce
    more = script.disk_settings(order, own_disks=gce is not None and bool(gce.overrides.get("disks")))
    return script.boot_settings(order, "gce", environ, names=list(names.machines(order)), project=project, **more)


def shutdown_script() -> str:
    """The shutdown script: notifies the agent of the shutdown, and waits while the agent saves. The wait delays the
    rest of the shutdown, within the platform's time limit."""
    return _SHUTDOWN.format(saving_s=_SAVING_S)


@lru_cache(maxsize=1)
def payload() -> bytes:
    """The zip that the startup script runs on the machine."""
    return script.payload("stoker.providers.gce", "stoker.cloudapi.google.metadata")


# The agent watches for the file: see stoker.providers.gce.machine. The file appears by a rename, so that it is never
# incomplete, and is gone after a reboot. Tests set STOKER_BOOT_ROOT.
_SHUTDOWN = r"""#!/bin/sh
# Stoker: this machine is being stopped. The agent gets a notice, and has until the platform's deadline to save.
run=${{STOKER_BOOT_ROOT:-}}/run/stoker
mkdir -p "$run"
date +%s >"$run/.shutdown" && mv "$run/.shutdown" "$run/shutdown"
left={saving_s}
while [ "$left" -gt 0 ]; do
    case "$(systemctl is-active stoker-agent.service)" in
        active | activating | deactivating | reloading) sleep 1 ;;
        *) break ;;
    esac
    left=$((left - 1))
done
"""
