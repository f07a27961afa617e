"""A Compute Engine that boots what it is asked to boot, for tests.

    with gce_cloud() as cloud:
        ...  # `cloud.env` is what a client needs; machines launched there are real ones with systemd

Every request is held against Google's own discovery documents: `cloud.broken()` tells those that did not fit, and
`check_request` does the same without a cloud. Needs root, Debian's machine tools, googleapiclient and a network
namespace with no way out: `why_no_gce()` says what is missing.
"""

from __future__ import annotations

from importlib.util import find_spec

from tests.support.gce.catalog import IMAGES, OTHER_PROJECT, PROJECT, REGION, Image, node_account
from tests.support.gce.cloud import CloudFaults, GceCloud, Left, MachineHandle, gce_cloud
from tests.support.gce.discovery import check_request
from tests.support.gce.faults import Fault
from tests.support.machines.needs import why_no_machines

__all__ = [
    "IMAGES",
    "OTHER_PROJECT",
    "PROJECT",
    "REGION",
    "CloudFaults",
    "Fault",
    "GceCloud",
    "Image",
    "Left",
    "MachineHandle",
    "check_request",
    "gce_cloud",
    "node_account",
    "why_no_gce",
]


def why_no_gce() -> str | None:
    """One line that says why there can be no such cloud here; None where there can."""
    if find_spec("googleapiclient") is None:
        return "this Compute Engine needs google-api-python-client (pip install 'stoker[test]')"
    return why_no_machines()
