"""A job that passed every check and waits to be sent."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from stoker.core.policy_rules import EffectiveLimits
from stoker.model.offerings import Capabilities, Offering
from stoker.model.spec import Spec
from stoker.model.submission import Code
from stoker.submit.pack_code import PackedCode

if TYPE_CHECKING:
    from stoker.submit.agent_bundle import AgentArchive
    from stoker.submit.node_programs import ProgramFile
    from stoker.submit.uploads import Upload
    from stoker.submit.wheels import WheelSet


@dataclass(frozen=True)
class PreparedJob(AbstractContextManager["PreparedJob"]):
    """A job that is ready to be submitted. Use it in a `with`: the packed code is a temporary file."""

    spec: Spec
    capabilities: Capabilities
    # The offerings that spec and policy allow, best first.
    offerings: tuple[Offering, ...]
    # Everything the provider offers, to compare prices with.
    all_offerings: tuple[Offering, ...]
    # Things that may not be as the submitter meant them, one line each.
    warnings: tuple[str, ...] = ()
    # Further lines of the plan.
    notes: tuple[str, ...] = ()
    # The limits of spec and policy together; None: the policy was not read.
    limits: EffectiveLimits | None = None
    packed: PackedCode | None = None
    # Code that the store already holds: a clone shares it with the original job.
    code: Code | None = None
    environ: dict[str, str] | None = None
    # The agents that the job's machines install.
    bundles: tuple[AgentArchive, ...] = ()
    # Programs that the job's machines may need.
    tools: tuple[ProgramFile, ...] = ()
    # Inputs to upload from this computer.
    uploads: tuple[Upload, ...] = ()
    # The size of the inputs that each machine copies, as far as it is known.
    inputs_bytes: int = 0
    # Packages for machines that reach no package index.
    wheels: WheelSet | None = None
    # The one place of all the job's machines, where the provider has only one.
    place: str | None = None
    # The job that this one is a clone of.
    origin: str | None = None
    # For the log: a line for each rule of the policy that filled something in, and the digest of the policy.
    filled: tuple[str, ...] = ()
    policy: str = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Delete the packed code."""
        if self.packed is not None:
            self.packed.path.unlink(missing_ok=True)
