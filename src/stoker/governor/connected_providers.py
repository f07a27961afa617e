"""The providers a governor works with, connected when first used."""

from __future__ import annotations

from collections.abc import Callable

from stoker.model.errors import Transient
from stoker.model.offerings import Capabilities
from stoker.model.resources import Resources
from stoker.model.submission import Submission
from stoker.providers import registry
from stoker.providers.base import HasPlace, Provider
from stoker.providers.regional_offerings import RegionalOfferings, offerings_in_regions


class Fleet:
    """Providers by name, each connected once. `connect` may be replaced, as the simulation does."""

    def __init__(self, store_url: str, connect: Callable[[str], Provider] | None = None) -> None:
        self.store_url = store_url
        self._connect = connect or (lambda name: registry.connect(name, registry.Context(store=store_url)))
        self._providers: dict[str, Provider] = {}

    def provider(self, name: str) -> Provider:
        """The provider called `name`. Raises UserError when there is none."""
        if name not in self._providers:
            self._providers[name] = self._connect(name)
        return self._providers[name]

    def capabilities(self, name: str) -> Capabilities:
        return self.provider(name).capabilities

    def offerings(self, resources: Resources) -> RegionalOfferings:
        return offerings_in_regions(self.provider(resources.provider), resources)

    def check_place(self, submission: Submission) -> None:
        """Raise Transient for a job whose machines can only be started on another computer."""
        if self.is_elsewhere(submission):
            raise Transient(f"it runs where {submission.submitter} submitted it; a governor has to run there")

    def is_elsewhere(self, submission: Submission) -> bool:
        """Return whether the job's machines can only be started and listed on another computer."""
        provider = self.provider(submission.spec.resources.provider)
        return isinstance(provider, HasPlace) and submission.place not in (provider.place, None)

    def connected(self) -> list[Provider]:
        """The providers that were used so far."""
        return list(self._providers.values())

    def always_listed(self) -> list[tuple[str, str | None]]:
        """Places that are listed in every pass, independent of the jobs: listing this computer costs nothing."""
        return [(name, None) for name, provider in self._providers.items() if not provider.capabilities.paid]
