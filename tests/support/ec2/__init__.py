"""An EC2 that boots what it is asked to boot, for tests.

    with ec2_cloud() as cloud:
        ...  # `cloud.env` is what a client needs; machines launched there are real ones with systemd and cloud-init

Needs root, Debian's machine tools and a network namespace with no way out: `why_no_machines()` says what is missing.
"""

from __future__ import annotations

from tests.support.ec2.cloud import PROFILE, REGION, Ec2Cloud, MachineHandle, ec2_cloud
from tests.support.ec2.faults import Fault
from tests.support.ec2.images import IMAGES, Image
from tests.support.machines.needs import why_no_machines

__all__ = ["IMAGES", "PROFILE", "REGION", "Ec2Cloud", "Fault", "Image", "MachineHandle", "ec2_cloud", "why_no_machines"]
