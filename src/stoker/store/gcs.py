"""A bucket on Google Cloud Storage, through obstore, which speaks the XML API."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable

import obstore
from obstore.store import GCSStore

from stoker.model.errors import NoCredentials, StoreError, StoreUnavailable, UserError
from stoker.store.base import GOOGLE_LOGIN
from stoker.store.bucket import BucketStore, open_pair
from stoker.store.google_accounts import credentials_stamp, obstore_options
from stoker.store.obstore_errors import first_line, reason, status, translated
from stoker.store.parallel import run_all

# The XML API has no request that deletes many objects.
_DELETES_AT_ONCE = 16


def open_gcs(bucket: str, prefix: str) -> BucketStore:
    """Open the bucket, with endpoint and credentials from the environment. Makes no request.

    Raises UserError for credentials that cannot be read.
    """
    url = f"gs://{bucket}/{prefix}".rstrip("/")
    endpoint = emulator_address()

    def clients() -> tuple[GCSStore, GCSStore]:
        options = obstore_options() | ({"base_url": endpoint} if endpoint else {})
        return open_pair(
            url,
            lambda more: GCSStore(bucket, prefix=prefix or None, **options, **more),
            allow_http=endpoint.startswith("http://"),
        )

    return GcsBucket(url, clients)


def emulator_address() -> str:
    """URL of an emulator, if set: from the variable that Google's own libraries read, with or without a scheme."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").strip().rstrip("/")
    return host if not host or "://" in host else f"http://{host}"


class GcsBucket(BucketStore):
    """A `Store` on Cloud Storage. A create is a put on the condition that no generation of that name exists."""

    # One name accepts about one write a second, and answers the rest with this status. Losers of a race to create may
    # get it as well. https://cloud.google.com/storage/docs/gcs429
    _busy_statuses = frozenset({429})

    def __init__(self, url: str, clients: Callable[[], tuple[GCSStore, GCSStore]]) -> None:
        self._clients = clients
        self._read = credentials_stamp()
        quick, bulk = clients()
        super().__init__(url, quick=quick, bulk=bulk)

    def _reload_credentials(self) -> bool:
        """Reload the credentials if their file has changed, and return whether it has: a governor runs for months, and
        logins and keys expire."""
        stamp = credentials_stamp()
        if stamp == self._read:
            return False
        try:
            self._quick, self._bulk = self._clients()
        except UserError:
            return False  # Half written, or gone: the old credentials stay in use.
        self._read = stamp
        return True

    def _remove(self, keys: builtins.list[str]) -> None:
        def remove(key: str) -> None:
            try:
                self._retry_while_busy(lambda: obstore.delete(self._quick, key))
            except FileNotFoundError as error:
                # Unlike S3, Google reports deletes of absent objects.
                self._check_absent(error)

        run_all([lambda key=key: remove(key) for key in keys], _DELETES_AT_ONCE)  # type: ignore[misc]

    def _translated(self, error: Exception) -> StoreError:
        text = str(error)
        refused = status(error) == 401 or "token request" in text or "External GCP credential provider" in text
        if refused and self._reload_credentials():
            return StoreUnavailable(f"{self.url}: your Google credentials have changed, and are used from now on")
        if "computeMetadata" in text:
            if status(error) == 404:
                return NoCredentials(
                    f"{self.url}: this machine has no service account; give it one that may use the bucket"
                )
            return NoCredentials(f"{self.url}: no Google credentials; {GOOGLE_LOGIN}")
        if "External GCP credential provider" in text:
            why = first_line(error).partition("credential provider: ")[2]
            return NoCredentials(f"{self.url}: Google's credentials cannot be used: {why}; {GOOGLE_LOGIN}")
        if "token request" in text:
            answered = status(error)
            if answered is not None and 400 <= answered < 500:
                return NoCredentials(f"{self.url}: Google no longer accepts your login; {GOOGLE_LOGIN}")
            return StoreUnavailable(f"{self.url}: Google did not answer to your login: {reason(error)}")
        return translated(error, self.url)
