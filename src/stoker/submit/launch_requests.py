"""Build the requests of a job's first launch, to show them and to let the cloud check them."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.longest_life import longest_life_s
from stoker.model.errors import InvalidRequest, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.providers.base import HttpRequest, LaunchOrder, Provider, Request, SupportsPreflight
from stoker.store.base import Store
from stoker.store.find_job import SUFFIX_LENGTH
from stoker.submit.choose_offerings import connect
from stoker.submit.identity import user_at_host
from stoker.submit.prepared_job import PreparedJob

LaunchRequests = tuple[Request | HttpRequest, ...]


def launch_requests(prepared: PreparedJob, store: Store) -> LaunchRequests:
    """The requests of the first claim. Pure: asks neither cloud nor store."""
    return _requests(prepared, store, connect(prepared.spec, store), prepared.offerings[0])


def preflight(provider: Provider, prepared: PreparedJob, store: Store) -> None:
    """Let the cloud check the first launches, where it can. Raises UserError where it would refuse one of them.

    Whatever is raised, the packed code is deleted first.
    """
    if not isinstance(provider, SupportsPreflight):
        return
    try:
        for offerings in _first_offerings(prepared):
            try:
                provider.preflight(*(_requests(prepared, store, provider, offering) for offering in offerings))
            except InvalidRequest as error:
                raise UserError(str(error)) from None
            except ProviderError:
                pass  # The cloud did not answer, or the submitter may not launch: the governor finds out.
    except BaseException:  # Ctrl-C, too, must not leave the archive behind; raised again
        prepared.discard()
        raise


def _first_offerings(prepared: PreparedJob) -> Iterator[tuple[Offering, ...]]:
    """The best spot and the best on-demand offering, region by region.

    Both, because a request for spot machines lacks what on-demand machines alone ask for, such as a reservation.
    """
    first: dict[str | None, dict[bool, Offering]] = {}
    for offering in prepared.offerings:
        first.setdefault(offering.region, {}).setdefault(offering.spot, offering)
    for there in first.values():
        yield tuple(there.values())


def _requests(prepared: PreparedJob, store: Store, provider: Provider, offering: Offering) -> LaunchRequests:
    spec = prepared.spec
    order = LaunchOrder(
        job=f"{spec.name}-{'0' * SUFFIX_LENGTH}",
        name=spec.name,
        claim=2,
        nodes=spec.nodes,
        attempt=1,
        store=store.url,
        spec=spec,
        submitter=user_at_host(),
        offering=offering,
        max_life_s=longest_life_s(spec),
        environ=prepared.environ or {},
        bundles={built.tag: built.digest for built in prepared.bundles},
        inputs_bytes=prepared.inputs_bytes,
    )
    return provider.build(order)
