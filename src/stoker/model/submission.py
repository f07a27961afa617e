"""A submitted job: its spec, and what was true when it was submitted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from stoker.model.keywords import checks_fields
from stoker.model.spec import Spec


@checks_fields
@dataclass(frozen=True)
class Code:
    """The packed code folder. `digest` and `generation` name the archive in the store."""

    digest: str
    size: int
    files: int
    commit: str | None = None
    dirty: bool | None = None
    generation: int = 1


@checks_fields
@dataclass(frozen=True)
class Wheel:
    """A package for machines without an index: its file name and size. Digest and generation name it in the store."""

    name: str
    digest: str
    size: int
    generation: int = 1

    @property
    def project(self) -> str:
        return self.name.split("-")[0]

    @property
    def version(self) -> str:
        return self.name.split("-")[1]


def wheels_target(python: str, arch: str) -> str:
    """The machines that a set of wheels is for, such as `3.12-x86_64`: Python version and processor."""
    version = ".".join(python.split(".")[:2])
    return f"{version}-{'arm64' if arch == 'aarch64' else arch}"


@checks_fields
@dataclass(frozen=True)
class Submission:
    """`jobs/<job>/spec.json`: the spec and the circumstances of its submission. Never changes."""

    job: str
    spec: Spec
    submitter: str
    code: Code | None = None
    # On `local`, the submitter's active environment: PATH, VIRTUAL_ENV, CONDA_PREFIX. Elsewhere, the endpoint and
    # region of the store. No secrets.
    environ: dict[str, str] = dataclasses.field(default_factory=dict)
    # The agents that its machines install, by Python and architecture (`cp311-x86_64`), each by its name in the store:
    # its digest, and its generation unless that is the first.
    bundles: dict[str, str] = dataclasses.field(default_factory=dict)
    # Programs that its machines fetch when needed, by name and architecture (`uv-x86_64`), named likewise.
    tools: dict[str, str] = dataclasses.field(default_factory=dict)
    # The wheels that its machines install from, by kind of machine (`3.12-x86_64`).
    wheels: dict[str, tuple[Wheel, ...]] = dataclasses.field(default_factory=dict)
    # The size of the inputs that each of its machines copies, as far as it was known.
    inputs_bytes: int = 0
    # On `local`, the computer and home folder: its Python and folders are there, and its nodes are visible only there.
    place: str | None = None
    # Limits that the client added because no job may be unbounded; shown to the user.
    defaulted: tuple[str, ...] = ()
    # The job this one was cloned from.
    origin: str | None = None
    version: int = 1
