"""Publish a message to Pub/Sub, as the machine's service account. Runs on Python 3.6 or newer: see the package.

https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.topics/publish
"""

import base64
import http.client
import json
import os
from urllib.parse import urlsplit

_ENDPOINT = "https://pubsub.googleapis.com"
_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB"
# A machine that is about to end must not wait long for this.
_TIMEOUT_S = 3.0
_ANSWER_BYTES = 1 << 16


class PublishError(OSError):
    """The message was not accepted. `status` is that of the answer; 0 if there was none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def publish(topic: str, message: "dict[str, object]", token: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Send one message to `projects/…/topics/…`. Raises PublishError."""
    where = os.environ.get(_VARIABLE) or _ENDPOINT
    parts = urlsplit(where if "://" in where else "http://" + where)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    data = base64.b64encode(json.dumps(message).encode()).decode()
    body = json.dumps({"messages": [{"data": data}]})
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    connection = kind(parts.netloc, timeout=timeout_s)
    try:
        connection.request("POST", f"/v1/{topic}:publish", body=body, headers=headers)
        answer = connection.getresponse()
        answer.read(_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise PublishError(f"{parts.netloc} does not answer: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise PublishError(f"{topic} was answered with {answer.status}", answer.status)
