"""Wait until the accelerators that this machine was sold with are seen; a machine that lacks some is given back.

Nothing of the job runs before, with one exception: a `setup` or `environment.apt` that installs the driver itself.
"""

from __future__ import annotations

from stoker.agent.health import accelerators
from stoker.agent.health.accelerators import AcceleratorProbe, AcceleratorWait, Seen, Sold, describe, sold_accelerators
from stoker.agent.phases.context import AttemptContext
from stoker.model.errors import SetupFailed
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.providers.base import HasEnvironmentCache, RunsInContainer


class AcceleratorPhase:
    """The accelerators of one attempt: `wait` precedes the set-up, `wait_after_setup` follows it."""

    def __init__(self, context: AttemptContext, submission: Submission) -> None:
        self._context = context
        self._spec = submission.spec
        claim = context.log_watch.claim()
        assert claim is not None
        self._sold = promised(submission.spec, claim.offering) if self._is_bought() else None
        # The set-up may install the driver.
        self._open = False

    def wait(self) -> None:
        """Wait for what was sold. Raises SetupFailed, as a fault of the machine, and LeaveEarly."""
        if self._sold is None:
            return
        seen = self._wait(self._sold, accelerators.WAIT_S if self._expects_driver() else accelerators.SETTLE_S)
        if seen.count >= self._sold.count:
            return
        nothing = not seen.count and not seen.problem
        if nothing and not self._needs_driver():
            self._context.node.say(f"{describe(self._sold, seen)}; the job goes on, since it asks for no GPU")
        elif not seen.count and self._spec.may_install_driver:
            self._open = True
            what = "setup" if self._spec.setup is not None else "environment.apt"
            self._context.node.say(f"{describe(self._sold, seen)}; {what} is run, which may install the driver")
        else:
            raise _given_back(self._sold, seen)

    def wait_after_setup(self) -> None:
        """Look again where the set-up was to install the driver. Raises as `wait` does."""
        if self._sold is None or not self._open:
            return
        seen = self._wait(self._sold, accelerators.WAIT_S)
        if seen.count < self._sold.count:
            raise _given_back(self._sold, seen)

    def _is_bought(self) -> bool:
        """Return whether a cloud has sold a whole machine. Others, such as SageMaker's, are checked by their owner."""
        return not isinstance(self._context.node.machine, (HasEnvironmentCache, RunsInContainer))

    def _needs_driver(self) -> bool:
        """Return whether the job asks for GPUs, or leaves the image to Stoker, which then has a driver."""
        return self._spec.resources.gpus is not None or self._spec.resources.image is None

    def _expects_driver(self) -> bool:
        """Return whether the image is to bring the driver, be it installed at the first boot.

        An image of the user's may bring none, to a job that asks for no GPU or installs the driver itself. A driver
        that shows itself is waited for in any case.
        """
        return self._spec.resources.image is None or (self._needs_driver() and not self._spec.may_install_driver)

    def _wait(self, sold: Sold, wait_s: float) -> Seen:
        context = self._context
        probe = AcceleratorProbe(lambda: context.wait_for_others(0.0))
        wait = AcceleratorWait(
            sold,
            probe.count,
            context.node.say,
            context.wait_for_others,
            wait_s=wait_s,
            settle_s=accelerators.SETTLE_S,
            longest_s=accelerators.WAIT_S,
        )
        return wait.run()


def promised(spec: Spec, offering: Offering) -> Sold | None:
    """Return the accelerators that the job was promised; None if it has none, or wants none of the machine's."""
    wished = spec.resources.gpus
    if wished is not None and not wished.count:
        return None
    return sold_accelerators(offering.gpu, offering.gpus)


def _given_back(sold: Sold, seen: Seen) -> SetupFailed:
    return SetupFailed(f"{describe(sold, seen)}; it is given back", user=False)
