"""The names of roles and policies in IAM: each store has its own, so that two stores share an account."""

from __future__ import annotations

from stoker.model import keys

# A role's name has up to 64 characters, and a job's name, which may stand at its end, has up to 40.
_DIGEST_LENGTH = 10


def node_role(store: str) -> str:
    """The role of a store's machines, and its instance profile."""
    return of_deployment("node", keys.deployment_name(store))


def fis_role(store: str) -> str:
    """The role that the Fault Injection Service assumes, for `stoker interrupt`."""
    return of_deployment("fis", keys.deployment_name(store))


def policy_name(kind: str, store: str) -> str:
    """The managed policy of people or governors of a store."""
    return of_deployment(kind, keys.deployment_name(store))


def of_deployment(kind: str, deployment: str) -> str:
    """The name of this kind for the store whose governor is deployed under `deployment`."""
    return f"stoker-{kind}-{deployment.removeprefix('stoker-')[:_DIGEST_LENGTH]}"
