"""The machine types and regions of SageMaker that its tables have."""

from __future__ import annotations

from stoker.providers import packaged_data
from stoker.providers.ec2 import places
from stoker.providers.known_names import KnownNames


def known_names() -> KnownNames:
    # Also the types that EC2's table lacks: external jobs may use them.
    names = packaged_data.read_table("sagemaker", "machines")["machines"]
    return KnownNames(frozenset(names), places.known_regions())
