"""The container image of a job: the first node that resolves the name decides for all nodes and attempts."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from stoker.agent.container import registry_login
from stoker.agent.container.engine import FIELD, Engine
from stoker.agent.container.images import ImageFetcher, LocalImage
from stoker.agent.container.registry_login import RegistryLogin
from stoker.agent.node import AgentNode, AskStore
from stoker.agent.rendezvous import sleep_interruptibly
from stoker.agent.runtime import StepTimer
from stoker.model import codec, dlc_images, keys
from stoker.model.node_facts import ImageFact
from stoker.model.observed import Known
from stoker.model.spec import Container
from stoker.processes.container_sweep import ContainerRecord, container_name, write_record
from stoker.secrets.fetch_secrets import fetch
from stoker.store.node_facts import read_fact


class JobImage:
    """Fetches the image of one job. `check` is called while it waits, and may raise to end this node's work."""

    def __init__(
        self, node: AgentNode, spec: Container, engine: Engine, ask: AskStore, check: Callable[[], None]
    ) -> None:
        self._node = node
        self._spec = spec
        self._engine = engine
        self._ask = ask
        self._pause = partial(sleep_interruptibly, check=check)

    def fetch(self, timed: StepTimer) -> LocalImage:
        """Return the image, and pull it first if needed. Raises SetupFailed, and whatever `check` raises."""
        root = self._node.paths.root
        login_folder = registry_login.private_folder(os.environ) / container_name(root)
        name = dlc_images.resolve(
            self._spec.image, os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        recorded = self._read_fact()
        # Written before the pull: a later sweep finds the password's folder even if this agent is killed.
        write_record(root, ContainerRecord(self._engine.program, str(login_folder)))
        images = ImageFetcher(self._engine, self._login, login_folder, self._node.say, timed, self._pause)
        image = images.fetch(name, recorded)
        if recorded is None:
            image = self._record(image, images)
        self._node.say(f"container: {name} ({image.identity})" if name != image.identity else f"container: {name}")
        return image

    def _read_fact(self) -> ImageFact | None:
        """Return the image that an earlier attempt, or another node of this one, has recorded for the name."""
        found = self._ask(lambda: read_fact(self._node.store, keys.image(self._node.config.job), ImageFact))
        return found.value.value if isinstance(found, Known) and found.value is not None else None

    def _record(self, image: LocalImage, images: ImageFetcher) -> LocalImage:
        """Record the image for all nodes. If another node was first, return its image instead."""
        key, data = keys.image(self._node.config.job), codec.dumps(image.fact)
        if self._ask(lambda: self._node.store.create(key, data)):
            return image
        first = self._read_fact()
        return image if first is None or first == image.fact else images.fetch(image.name, first)

    def _login(self, reference: str) -> RegistryLogin | None:
        """Fetch the password for the registry of an image, again for each pull: tokens expire. Raises SetupFailed."""
        registry = registry_login.registry_of(reference)
        secret_reference, field = self._spec.secret, f"{FIELD}.secret"
        if secret_reference is None:
            secret_reference, field = registry_login.reference_of(registry), f"{FIELD}.image"
            if secret_reference is None or registry_login.has_login(registry, os.environ):
                return None
        secret = self._ask(lambda: fetch(field, secret_reference, os.environ))
        return registry_login.make_login(registry, secret, field)
