"""Find a provider by name. Lazy: no module of a cloud is imported before that cloud is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from stoker.model.errors import NoSuchProvider, UserError
from stoker.model.spec import Spec, is_port
from stoker.store.home import is_unnamed_store

if TYPE_CHECKING:
    from stoker.providers.base import Capabilities, Machine, Provider
    from stoker.providers.console_links import LinksModule
    from stoker.providers.grants import IamModule
    from stoker.providers.image_info import ImagesModule
    from stoker.providers.known_names import KnownNames, KnownNamesModule
    from stoker.providers.price_book import PricesModule

GROUP = "stoker.providers"

# Built-in providers need no look-up of entry points, which reads the metadata of every installed package.
_BUILT_IN = {name: f"stoker.providers.{name}" for name in ("local", "ec2", "gce", "sagemaker")}


@dataclass(frozen=True)
class Context:
    """The settings that a provider is connected with. `store` is the tag that marks this store's machines.

    `offline`: no cloud may be asked and there are no credentials; the provider answers from its own tables.
    """

    store: str
    offline: bool = False


def names() -> list[str]:
    """The names of all providers that could be connected."""
    return sorted({*_BUILT_IN, *_entry_points()})


def connect(name: str, context: Context) -> Provider:
    """Connect the provider called `name`. Raises UserError if there is none."""
    return cast("Provider", _module(name).connect(context))


def capabilities(name: str) -> Capabilities:
    """The provider's capabilities, without connecting to it."""
    return cast("Capabilities", _module(name).CAPABILITIES)


def check_store(name: str, url: str, option: str = "--store") -> None:
    """Raise UserError for a store that the provider's machines cannot reach. `option` names the setting of the
    store."""
    schemes = capabilities(name).stores
    if schemes and url.partition("://")[0] not in schemes:
        forms = " or ".join(f"{scheme}://BUCKET/PREFIX" for scheme in schemes)
        if is_unnamed_store(url):
            # The default folder on this computer: the user named no store, so the message must not blame one.
            raise UserError(f"no store is named; set STOKER_STORE, or give {option}, as {forms}")
        how = f"set STOKER_STORE or --store to {forms}" if option == "--store" else f"give it as {forms}"
        raise UserError(f"{option}: machines on {name} cannot reach {url}; {how}")


def check_spec(name: str, store: str, spec: Spec) -> None:
    """Raise UserError for a store or a port that machines of a cloud cannot use, and for a wrong list of regions."""
    check_store(name, store)
    if problem := spec.resources.regions_problem():
        raise UserError(problem)
    port = spec.env.get("MASTER_PORT")
    if port is not None and not is_port(port):
        raise UserError(f"env.MASTER_PORT: {port!r} is no port; give a number from 1 to 65535")


def machine(name: str, node_dir: Path) -> Machine:
    """The node's side of the provider, for the agent that runs on it."""
    return cast("Machine", _module(name).machine(node_dir))


def prices(name: str) -> PricesModule:
    """The provider's price table. Raises UserError if it has none."""
    return cast("PricesModule", _part(name, "prices", f"--provider: {name} keeps no table of prices"))


def iam(name: str) -> IamModule:
    """The permissions that the provider's cloud has to grant. Raises UserError if it needs none."""
    return cast("IamModule", _part(name, "iam", f"{name} needs no permissions of a cloud"))


def images(name: str) -> ImagesModule | None:
    """The provider's knowledge about its images; None if it has none."""
    try:
        return cast("ImagesModule", _part(name, "images", f"{name} knows no images"))
    except UserError:
        return None


def known_names(name: str) -> KnownNames | None:
    """The machine types and regions in the provider's tables; None if it has no tables."""
    try:
        return cast("KnownNamesModule", _part(name, "known_names", f"{name} has no tables of names")).known_names()
    except UserError:
        return None


def links(name: str) -> LinksModule | None:
    """Addresses in the provider's web console; None if it has no console or is not installed."""
    try:
        return cast("LinksModule", _part(name, "links", f"{name} has no console"))
    except UserError:
        return None


def _part(name: str, part: str, lacking: str) -> ModuleType:
    path = f"{_module(name).__name__}.{part}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise UserError(lacking) from None


def _module(name: str) -> ModuleType:
    path = _BUILT_IN.get(name)
    if path is None:
        path = _entry_points().get(name)
    if path is None:
        known = ", ".join(names())
        raise NoSuchProvider(f"there is no provider {name!r}; choose one of: {known}")
    return importlib.import_module(path)


def _entry_points() -> dict[str, str]:
    """The modules of the installed providers, by name."""
    # Imported here: slower than any other import of an agent or a command, and seldom needed.
    from importlib import metadata

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}
