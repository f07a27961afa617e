"""Turn an EC2 machine into a node: see `stoker.providers.boot.install`.

The machine's metadata are its identity, and its role opens the bucket. Runs from a zip inside the user-data, on Python
3.6 or newer, with the settings in `boot.json`.
"""

import hashlib
import http.client
import os
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from stoker.cloudapi.aws.imds import Imds, ImdsError
from stoker.cloudapi.aws.sigv4 import encoded, sign
from stoker.providers.boot.install import BootCloud, main
from stoker.providers.boot.retry import (
    ABSENT_S,
    ANSWER_S,
    DENIED_S,
    ROLE_S,
    RetryableFailure,
    retry,
    save_body,
    send_request,
)


class Ec2Identity:
    """This machine, read from its metadata. Raises BootFailed if the metadata are not available."""

    def __init__(self, imds: Imds) -> None:
        self._imds = imds
        self.instance = self.required("meta-data/instance-id")
        self.rank = int(self.required("meta-data/ami-launch-index"))
        self.zone = self.required("meta-data/placement/availability-zone")
        self.region = self.optional("meta-data/placement/region") or self.zone[:-1]
        self.domain = self.optional("meta-data/services/domain") or "amazonaws.com"

    def required(self, path: str) -> str:
        def ask() -> str:
            found = self.optional(path)
            if found is None:
                raise RetryableFailure(f"the metadata service has no {path} — start the machine again", ABSENT_S)
            return found

        return retry(ask)

    def optional(self, path: str) -> "str | None":
        def ask() -> "str | None":
            try:
                return self._imds.get(path)
            except ImdsError as error:
                remedy = "let machines reach it (HttpEndpoint enabled in their metadata options)"
                raise RetryableFailure(f"{error} — {remedy}", ANSWER_S) from None

        return retry(ask)

    def credentials(self) -> "Any":
        try:
            found = self._imds.credentials()
        except ImdsError as error:
            raise RetryableFailure(f"{error} — check the machine's instance profile and its role", ROLE_S) from None
        if found is None:
            remedy = "set resources.ec2.profile to one that may read the bucket (`stoker iam ec2` writes its policy)"
            raise RetryableFailure(f"the machine has no instance profile — {remedy}", ROLE_S)
        return found


class Ec2BootBucket:
    """Signed requests to one bucket, until the agent with its own client is installed."""

    def __init__(self, name: str, environ: "dict[str, str]", region: str, identity: Ec2Identity) -> None:
        self._name = name
        self._endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        self.region = region
        self._identity = identity
        self._clock_offset = timedelta(0)

    def get(self, key: str, target: Path) -> str:
        """Fetch an object into a file. Returns its SHA-256. Raises RetryableFailure."""
        found = []
        self._ask("GET", key, b"", lambda answer: found.append(save_body(answer, target)))
        return found[0]

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises RetryableFailure."""
        self._ask("PUT", key, data, lambda answer: answer.read())

    def _url(self, key: str) -> str:
        path = encoded(key)
        if self._endpoint:
            return f"{self._endpoint.rstrip('/')}/{self._name}/{path}"
        host = f"s3.{self.region}.{self._identity.domain}"
        # A name with dots does not match the wildcard of S3's certificate.
        return f"https://{host}/{self._name}/{path}" if "." in self._name else f"https://{self._name}.{host}/{path}"

    def _ask(self, method: str, key: str, data: bytes, take: "Callable[[http.client.HTTPResponse], object]") -> None:
        url = self._url(key)
        at = datetime.now(timezone.utc) + self._clock_offset
        digest = hashlib.sha256(data).hexdigest()
        headers = sign(method, url, self._identity.credentials(), self.region, at, payload_digest=digest)
        remedy = "give the subnet a way to S3: a gateway endpoint, a NAT or a public address"
        send_request(method, url, headers, data, take, lambda answer: self._refused(method, key, answer), remedy)

    def _refused(self, method: str, key: str, answer: http.client.HTTPResponse) -> None:
        text = answer.read(8192).decode(errors="replace")
        code = text.partition("<Code>")[2].partition("</Code>")[0] or str(answer.status)
        what = f"s3://{self._name}/{key}"
        home = answer.getheader("x-amz-bucket-region")
        if home and home != self.region and not self._endpoint:
            self.region = home
            raise RetryableFailure(f"the bucket is in {home}", ANSWER_S)
        if code == "RequestTimeTooSkewed" and answer.getheader("Date"):
            # The machine's clock is not set yet.
            now = parsedate_to_datetime(str(answer.getheader("Date"))).astimezone(timezone.utc)
            self._clock_offset = now - datetime.now(timezone.utc)
        if answer.status in (401, 403) or code == "ExpiredToken" or code.startswith("KMS."):
            right = "s3:GetObject" if method == "GET" else "s3:PutObject"
            how = "stoker iam ec2"
            if "kms:" in text or "ciphertext refers to" in text or code.startswith("KMS."):
                # S3's message mostly names the key.
                found = re.search(r"arn:[\w-]+:kms:[\w:/-]+", text)
                right = (
                    f"kms:Decrypt and kms:GenerateDataKey on {found.group() if found else 'the KMS key of the bucket'}"
                )
                how += " --kms-key"
            raise RetryableFailure(
                f"{what} is denied ({code}) — give the role of the instance profile {right} (see `{how}`)",
                DENIED_S,
            )
        if answer.status == 404:
            raise RetryableFailure(f"{what} is not there ({code}) — submit the job again", ABSENT_S)
        raise RetryableFailure(f"{what}: S3 answered {answer.status} ({code}) — try again later", ANSWER_S)


class Ec2(BootCloud):
    """The machine, and the bucket as its role sees it. Switching the machine off gives it back."""

    def __init__(self, config: "dict[str, Any]") -> None:
        environ = config["environ"]
        self._identity = Ec2Identity(Imds(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")))
        self.instance = self._identity.instance
        self.rank = self._identity.rank
        self.zone = self._identity.zone
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or self._identity.region
        self._bucket = Ec2BootBucket(config["bucket"], environ, region, self._identity)

    def get(self, key: str, target: Path) -> str:
        return self._bucket.get(key, target)

    def put(self, key: str, data: bytes) -> None:
        self._bucket.put(key, data)

    def environ(self) -> "dict[str, str]":
        # The bucket's real region.
        found = {"AWS_REGION": self._bucket.region}
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        if endpoint:
            found["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = endpoint
        return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Ec2))
