"""Publish a message to Pub/Sub, as the machine's service account.

https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.topics/publish
"""

from __future__ import annotations

import base64
import json
import os

from stoker.cloudapi.http_exchange import NoAnswer, exchange, with_scheme

_ENDPOINT = "https://pubsub.googleapis.com"
_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB"
# A machine that is about to end must not wait long for this.
_TIMEOUT_S = 3.0


class PublishError(OSError):
    """The message was not accepted. `status` is that of the answer; 0 if there was none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def publish(topic: str, message: dict[str, object], token: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Send one message to `projects/…/topics/…`. Raises PublishError."""
    url = f"{with_scheme(os.environ.get(_VARIABLE) or _ENDPOINT).rstrip('/')}/v1/{topic}:publish"
    data = base64.b64encode(json.dumps(message).encode()).decode()
    body = json.dumps({"messages": [{"data": data}]}).encode()
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    try:
        answer = exchange("POST", url, headers, body, timeout_s=timeout_s)
    except NoAnswer as error:
        raise PublishError(str(error)) from None
    if answer.status != 200:
        raise PublishError(f"{topic} was answered with {answer.status}", answer.status)
