"""Find a provider by name, lazily: nothing of a cloud is imported until it is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from stoker.model.errors import UserError
from stoker.store.home import is_unnamed_store

if TYPE_CHECKING:
    from stoker.providers.base import Capabilities, Granting, Machine, Provider
    from stoker.providers.console_links import Links
    from stoker.providers.image_info import Images
    from stoker.providers.price_table import PriceTable

GROUP = "stoker.providers"

# Ours, so that the common case needs no look-up of entry points (which reads every installed package).
_BUILT_IN = {name: f"stoker.providers.{name}" for name in ("local", "ec2", "gce", "sagemaker")}


@dataclass(frozen=True)
class Context:
    """What a provider is connected with. `store` is the tag that tells this store's machines from others'.

    `offline`: no cloud may be asked, and there are no credentials. What the provider knows by itself has to do.
    """

    store: str
    offline: bool = False


def names() -> list[str]:
    """Every provider that could be connected."""
    return sorted({*_BUILT_IN, *_entry_points()})


def connect(name: str, context: Context) -> Provider:
    """The provider called `name`. Raises UserError when there is none."""
    return cast("Provider", _module(name).connect(context))


def capabilities(name: str) -> Capabilities:
    """What the provider can do, without connecting to it."""
    return cast("Capabilities", _module(name).CAPABILITIES)


def check_store(name: str, url: str, option: str = "--store") -> None:
    """Raise UserError for a store that the provider's machines cannot reach. `option` is where it was named."""
    schemes = capabilities(name).stores
    if schemes and url.partition("://")[0] not in schemes:
        forms = " or ".join(f"{scheme}://BUCKET/PREFIX" for scheme in schemes)
        if is_unnamed_store(url):
            # A folder of this computer, which nobody has named: it is no mistake in it.
            raise UserError(f"no store is named; set STOKER_STORE, or give {option}, as {forms}")
        how = f"set STOKER_STORE or --store to {forms}" if option == "--store" else f"give it as {forms}"
        raise UserError(f"{option}: machines on {name} cannot reach {url}; {how}")


def machine(name: str, node_dir: Path) -> Machine:
    """The node's own side of the provider, for the agent that runs on it."""
    return cast("Machine", _module(name).machine(node_dir))


def prices(name: str) -> PriceTable:
    """The provider's own table of prices. Raises UserError when it keeps none."""
    return cast("PriceTable", _part(name, "prices", f"--provider: {name} keeps no table of prices"))


def iam(name: str) -> Granting:
    """What the provider's cloud has to allow. Raises UserError where there is nothing to allow."""
    return cast("Granting", _part(name, "iam", f"{name} needs no permissions of a cloud"))


def images(name: str) -> Images | None:
    """What the provider knows of its images; None where it knows nothing."""
    try:
        return cast("Images", _part(name, "images", f"{name} knows no images"))
    except UserError:
        return None


def links(name: str) -> Links | None:
    """Where people find the provider's things in a browser; None where it has no such place, or is not installed."""
    try:
        return cast("Links", _part(name, "links", f"{name} has no console"))
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
        raise UserError(f"resources.provider: there is no provider {name!r}; choose one of: {known}")
    return importlib.import_module(path)


def _entry_points() -> dict[str, str]:
    """The providers that are installed, with their modules."""
    # Imported here: it takes longer than anything else that an agent or a command imports, and is seldom needed.
    from importlib import metadata

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}
