"""From a validated spec to a job in the store: check everything first, then write, and leave nothing of a failure."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import unquote

from stoker import codec, layout, log
from stoker.core.placement import acceptable
from stoker.errors import (
    CodecError,
    InvalidRequest,
    ProviderError,
    StokerError,
    StoreDenied,
    StoreError,
    UserError,
)
from stoker.finding import SUFFIX_LENGTH
from stoker.governor.apply import longest_life_s
from stoker.home import home, make_home
from stoker.jobfile import Layer, named_provider
from stoker.model import Capabilities, Offering, Record, Submitted
from stoker.pack import Packed, pack
from stoker.providers import registry
from stoker.providers.base import HttpRequest, LaunchOrder, Placed, Provider, Rehearses, Request
from stoker.spec import Code, Resources, Spec, Submission
from stoker.store import Meta, Store
from stoker.surroundings import localise, missing_script, store_environ, submitter_environ, unreachable

if TYPE_CHECKING:
    from stoker.bundle import Built
    from stoker.providers.imaging import Python

# No vowels, so that an id spells nothing; nothing that is mistaken for something else when read aloud.
_ALPHABET = "bcdfghjkmnpqrstvwxyz23456789"
# Two jobs of one name share a suffix once in 600,000 times; so many times in a row is another fault.
_ID_TRIES = 20
# Removal collects code that is unreferenced and older than a day. What a new job relies on is made younger than half of
# that, so that it cannot be collected before the job is in the log.
CODE_FRESH_FOR = timedelta(hours=12)

Say = Callable[[str], None]


@runtime_checkable
class Checks(Protocol):
    """A provider that can tell, without asking its cloud, what it would refuse."""

    def check(self, spec: Spec) -> None: ...


@runtime_checkable
class ExplainsNone(Protocol):
    """A provider that can say why it offers nothing."""

    def why_none(self, resources: Resources) -> str: ...


@runtime_checkable
class PlansFromTables(Protocol):
    """A provider that has tables of its own to plan from where nobody may be asked."""

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """What these resources name and no table has, a line each. Raises UserError for what surely is wrong."""


@runtime_checkable
class KnowsArchitectures(Protocol):
    """A provider whose machines are not all of one architecture."""

    def architectures(self, offerings: Iterable[Offering]) -> set[str]: ...


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be submitted. Use it in a `with`: the packed code is a temporary file."""

    spec: Spec
    capabilities: Capabilities
    # Those that the spec allows, best first, and all there are, to compare prices with.
    offerings: tuple[Offering, ...]
    offered: tuple[Offering, ...]
    folder: Path
    told: tuple[str, ...] = ()
    packed: Packed | None = None
    # Code that is in the store already: a clone's.
    code: Code | None = None
    environ: dict[str, str] | None = None
    # The agents that its machines install.
    bundles: tuple[Built, ...] = ()
    place: str | None = None
    origin: str | None = None

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.packed is not None:
            self.packed.path.unlink(missing_ok=True)


def submitter() -> str:
    """Who this is, for people: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # A container without a passwd entry.
    return f"{user}@{socket.gethostname()}"


def prepare(
    spec: Spec,
    store: Store,
    *,
    folder: Path,
    told: Sequence[str] = (),
    with_code: bool = True,
    offline: bool = False,
) -> Prepared:
    """Check everything that can be checked before anything is written, and pack the code.

    Relative paths of the spec are relative to `folder`. Raises UserError for the first thing that is wrong. The
    store is only read from. `offline`: no cloud is asked, for what it offers neither.
    """
    provider = connect(spec, store, offline=offline)
    if isinstance(provider, Checks):
        provider.check(spec)
    spec = localise(spec, provider.capabilities, folder, None if offline and not store.near else store)
    code_folder = folder / Path(spec.code).expanduser()
    if not code_folder.is_dir():
        problem = "is not a folder" if code_folder.exists() else "there is no such folder"
        raise UserError(f"code: {code_folder}: {problem}; name the folder that holds the script")
    missing = missing_script(spec.run, code_folder)
    if missing is not None:
        raise UserError(f"run: there is no {missing} in {code_folder.resolve()}; correct `run`, or `code`")
    offered = provider.offerings(spec.resources)
    new = provider.unchecked(spec.resources) if offline and isinstance(provider, PlansFromTables) else ()
    if offered and offered[0].region:
        # Frozen with the job, whole: whoever governs it later may live elsewhere, or in another project.
        spec = replace(spec, resources=replace(spec.resources, region=offered[0].region))
    # Nobody was asked for prices that change by the hour, and a plan must be shown all the same.
    fitting = fitting_offerings(spec, provider, offered, unpriced=offline)
    bundles, unserved = pack_agents(provider, spec, fitting, offline=offline)
    environ = submitter_environ() if provider.capabilities.here else store_environ(store.url)
    lost = () if provider.capabilities.here else unreachable(environ)
    if lost and not offline:
        raise UserError(lost[0])
    packed = pack(code_folder, exclude=_not_code(spec, store)) if with_code else None
    prepared = Prepared(
        spec=spec,
        capabilities=provider.capabilities,
        offerings=fitting,
        offered=offered,
        folder=code_folder,
        told=(*told, *new, *unserved, *lost, *_spot_left_out(spec, fitting, offered)),
        packed=packed,
        environ=environ,
        bundles=bundles,
        place=place_of(provider),
    )
    if not offline and isinstance(provider, Rehearses):
        try:
            provider.rehearse(_requests(prepared, store, provider))
        except InvalidRequest as error:
            prepared.__exit__(None, None, None)
            raise UserError(str(error)) from None
        except ProviderError:
            pass  # It could not be asked, or this person may not launch: whoever governs finds out.
    return prepared


def _spot_left_out(spec: Spec, fitting: Iterable[Offering], offered: Iterable[Offering]) -> tuple[str, ...]:
    """A line where a job that prefers spot will have none, though it is offered: nobody knows its price."""
    if spec.resources.spot != "prefer" or spec.limits.max_cost is None or any(each.spot for each in fitting):
        return ()
    if not any(each.spot and each.price is None for each in offered):
        return ()
    asks = f"`stoker prices --provider {spec.resources.provider} --refresh` may bring one"
    return (f"spot is left out: limits.max_cost needs a known price; {asks}, or set limits.max_runtime instead",)


def pack_agents(
    provider: Provider, spec: Spec, offerings: tuple[Offering, ...], *, offline: bool = False
) -> tuple[tuple[Built, ...], tuple[str, ...]]:
    """The agents for these machines, where they install their own, and a line for each kind that cannot be served.

    A kind that the job's image is known not to be is not worth a line.
    """
    if not provider.capabilities.bundled:
        return (), ()
    # It needs the metadata of installed packages, which takes longer to import than most commands run.
    from stoker.bundle import build_all

    wanted = provider.architectures(offerings) if isinstance(provider, KnowsArchitectures) else {"x86_64"}
    return build_all(wanted, offline=offline, oldest=_oldest_python(spec, offerings))


def _oldest_python(spec: Spec, offerings: tuple[Offering, ...]) -> Python | None:
    """A Python that every machine is sure to have, or a newer one; None where nobody knows."""
    images = registry.images(spec.resources.provider)
    if images is None:
        return None
    pythons = [images.python_of(spec.resources.image, offering.gpus) for offering in offerings]
    known = [python for python in pythons if python is not None]
    return min(known) if known and len(known) == len(pythons) else None


def place_of(provider: Provider) -> str | None:
    """Where the job's machines will be, where that is one place only."""
    return provider.place if isinstance(provider, Placed) else None


def check_reached(layers: Sequence[Layer], store: Store) -> None:
    """Raise UserError where the job names a provider whose machines cannot reach the store: before the store is asked
    for anything, since its credentials would be asked for in vain.
    """
    provider = named_provider(layers)
    if provider is not None:
        registry.check_store(provider, store.url)


def connect(spec: Spec, store: Store, *, offline: bool = False) -> Provider:
    """The spec's provider. Raises UserError when there is none of that name."""
    return registry.connect(spec.resources.provider, registry.Context(store=store.url, offline=offline))


def fitting_offerings(
    spec: Spec, provider: Provider, offered: tuple[Offering, ...], *, unpriced: bool = False
) -> tuple[Offering, ...]:
    """The offerings that the spec allows, best first. Raises UserError with the reason when there are none."""
    fitting, reason = acceptable(spec, offered, unpriced=unpriced)
    if fitting:
        return tuple(fitting)
    if not offered and isinstance(provider, ExplainsNone):
        reason = provider.why_none(spec.resources) or reason
    raise UserError(f"{reason}; `stoker offers` lists what there is")


def launch_requests(prepared: Prepared, store: Store) -> tuple[Request | HttpRequest, ...]:
    """What the first claim would ask the provider for. Pure: touches neither cloud nor store."""
    return _requests(prepared, store, connect(prepared.spec, store))


def _requests(prepared: Prepared, store: Store, provider: Provider) -> tuple[Request | HttpRequest, ...]:
    spec = prepared.spec
    order = LaunchOrder(
        job=f"{spec.name}-{'0' * SUFFIX_LENGTH}",
        name=spec.name,
        claim=2,
        nodes=spec.nodes,
        attempt=1,
        store=store.url,
        spec=spec,
        submitter=submitter(),
        offering=prepared.offerings[0],
        max_life_s=longest_life_s(spec),
        environ=prepared.environ or {},
        bundles={built.tag: built.digest for built in prepared.bundles},
    )
    return provider.build(order)


def check_writable(store: Store) -> None:
    """Write something and take it back: said before the plan is shown, not after. Raises UserError when it may not."""
    key = f"check/{secrets.token_hex(8)}"
    _make_home_of(store)
    try:
        store.put(key, b"")
        store.delete([key])
    except StoreDenied as error:
        raise _unwritable(error) from None


def _make_home_of(store: Store) -> None:
    """A store in the home must not be what makes it, with permissions for everybody."""
    if store.url.startswith(Path(os.path.realpath(home())).as_uri()):
        make_home()


def _unwritable(error: StoreDenied) -> UserError:
    return UserError(f"the store cannot be written: {error}; choose another with --store")


def send(prepared: Prepared, store: Store) -> str:
    """Put the job into the store: code, spec, marker, then the entry that opens the log. Answers the job's id.

    What fails before that entry leaves nothing behind. Raises UserError when the store may not be written, StoreError
    when it does not answer.
    """
    written: list[str] = []
    _make_home_of(store)
    try:
        return _send(prepared, store, written)
    except _Uncertain:
        raise
    except BaseException as error:
        _take_back(store, written)
        if isinstance(error, StoreDenied):
            raise _unwritable(error) from None
        raise


class _Uncertain(StoreError):
    """The entry may have been written: nothing may be taken back."""


def _send(prepared: Prepared, store: Store, written: list[str]) -> str:
    me = submitter()
    code = _put_code(prepared, store, written)
    _put_agents(prepared, store)
    submission = Submission(
        job="",
        spec=prepared.spec,
        submitter=me,
        code=code,
        environ=prepared.environ or {},
        bundles={built.tag: built.digest for built in prepared.bundles},
        place=prepared.place,
        defaulted=prepared.told,
        origin=prepared.origin,
    )
    job, data = _put_spec(submission, store, written)
    marker = layout.active(job, 1)
    written.append(marker)
    store.put(marker, b"")
    event = Submitted(
        spec_digest=codec.digest(data), submitter=me, code_digest=code.digest if code is not None else None
    )
    record = Record(token=log.new_token(), by=me, reason=f"submitted by {me}", event=event)
    _open_log(store, job, record)
    # A collector or a reindexing may have come between: put back what the job relies on.
    if store.head(marker) is None:
        store.put(marker, b"")
    if code is not None and store.head(layout.code(code.digest)) is None:
        _put_code(prepared, store, [])
    _put_agents(prepared, store)
    return job


def _open_log(store: Store, job: str, record: Record) -> None:
    try:
        if log.append(store, job, 1, record):
            return
    except StoreError as error:
        if isinstance(error, StoreDenied):
            raise
        raise _Uncertain(f"{error}; {job} may have been submitted: look with `stoker show {job}`") from None
    raise StokerError(f"{job}: somebody else submitted a job under this very id; submit it again")


def _put_spec(submission: Submission, store: Store, written: list[str]) -> tuple[str, bytes]:
    """Find an id that is free, and keep the frozen spec under it. Create-only, so two submitters never share one."""
    for _ in range(_ID_TRIES):
        suffix = "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX_LENGTH))
        job = f"{submission.spec.name}-{suffix}"
        data = codec.dumps(replace(submission, job=job))
        _check_readable(data)
        if store.head(layout.log_entry(job, 1)) is None and store.create(layout.spec(job), data):
            written.append(layout.spec(job))
            return job, data
    raise StokerError(f"no free id for a job called {submission.spec.name}; give it another name")


def _check_readable(data: bytes) -> None:
    """What no governor could read (a number of a thousand digits, for one) would be a job that never begins or ends."""
    try:
        codec.loads(Submission, data)
    except CodecError as error:
        raise UserError(f"the job cannot be kept: {error}") from None


def _put_code(prepared: Prepared, store: Store, written: list[str]) -> Code | None:
    """Upload the code once. What is there and young enough is left as it is; an old one is made young again."""
    if prepared.packed is None:
        if prepared.code is not None:
            _refresh_code(store, prepared.code)
        return prepared.code
    packed = prepared.packed
    key = layout.code(packed.digest)
    there = store.head(key)
    if there is None:
        if store.create(key, packed.path.read_bytes()):
            written.append(key)
    elif not _is_fresh(there):
        store.put(key, packed.path.read_bytes())
    return Code(digest=packed.digest, size=packed.size, files=packed.files, commit=packed.commit, dirty=packed.dirty)


def _put_agents(prepared: Prepared, store: Store) -> None:
    if prepared.bundles:
        from stoker import bundle

        for built in prepared.bundles:
            bundle.send(store, built)


def _refresh_code(store: Store, code: Code) -> None:
    key = layout.code(code.digest)
    there = store.head(key)
    if there is not None and _is_fresh(there):
        return
    found = store.get(key)
    if found is None:
        raise UserError("its code is not in the store any more; submit it again from the folder")
    store.put(key, found.data)


def _is_fresh(meta: Meta) -> bool:
    # Two machines' clocks, and hours of margin on both sides: a day and half a day.
    return datetime.now(timezone.utc) - meta.modified < CODE_FRESH_FOR


def _take_back(store: Store, written: list[str]) -> None:
    try:
        store.delete(reversed(written))
    except StoreError:
        return  # It does not answer; what is left is a spec without a log, which nobody runs and `reindex` unmarks.


def _not_code(spec: Spec, store: Store) -> list[str]:
    """What lies in the folder and is made by runs of it: not code, and it would change the digest each time."""
    found = [spec.checkpoints.dir, str(home())]
    if spec.outputs is not None:
        found.append(spec.outputs)
    if store.url.startswith("file://"):
        found.append(unquote(store.url.removeprefix("file://")))
    return found
