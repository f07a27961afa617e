"""The scripts that a machine's metadata carry: one that makes it a node, and one for its last seconds. Built purely."""

from __future__ import annotations

from functools import lru_cache

from stoker.model.errors import UserError
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.providers.boot import script
from stoker.providers.boot.script import Boot
from stoker.providers.gce import names
from stoker.providers.gce.places import Place

# What Compute Engine takes as one value of the metadata:
# https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations
MOST_BYTES = 256 * 1024
# The platform ends the wait long before, as a rule; see `TimeoutStopSec` in stoker.providers.boot.install for the
# number.
_SAVING_S = 90


def startup_script(order: LaunchOrder) -> str:
    """Runs at every boot, and knows the first. Raises UserError for a store that a machine cannot reach."""
    registry.check_store("gce", order.store)
    text = script.render(boot(order), payload(), gives_back=True)
    if len(text.encode()) > MOST_BYTES:
        raise UserError(
            f"the startup script has {len(text.encode())} bytes and Compute Engine takes {MOST_BYTES}; "
            "shorten the job's name or its store"
        )
    return text


def boot(order: LaunchOrder) -> Boot:
    """What the machine is told about itself. It finds its rank by its name."""
    project = Place.of(order.offering.region or "").project
    return script.boot_of(order, "gce", order.environ, names=list(names.machines(order)), project=project)


def shutdown_script() -> str:
    """Tells the agent that the machine is going, and stays while it saves: what runs last is taken down last."""
    return _SHUTDOWN.format(saving_s=_SAVING_S)


@lru_cache(maxsize=1)
def payload() -> bytes:
    """What runs on the machine."""
    return script.payload("stoker.providers.gce", "stoker.cloudapi.google.metadata")


# The agent watches for the file: see stoker.providers.gce.machine. It appears whole, and goes with the boot. `root` can
# be moved for tests.
_SHUTDOWN = r"""#!/bin/sh
# Stoker: this machine is being stopped. The agent is told, and has until the platform's patience ends to save.
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
