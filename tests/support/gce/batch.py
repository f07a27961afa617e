"""Several requests in one, as gcloud sends them: https://cloud.google.com/compute/docs/api/how-tos/batch"""

from __future__ import annotations

import json
from collections.abc import Callable
from email.parser import BytesParser
from email.policy import HTTP

from tests.support.gce.errors import Failure, Json

PATH = "/batch/compute/v1"

# The status and the answer to one request: verb, target, authorization, body.
Serve = Callable[[str, str, str, bytes], tuple[int, Json]]

_BOUNDARY = "batch_of_answers"


def answered(kind: str, authorization: str, body: bytes, serve: Serve) -> tuple[str, bytes]:
    """The content type and the body of the answers, in the order of the requests. Raises Failure (400)."""
    whole = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    if whole.get_content_type() != "multipart/mixed":
        raise Failure(400, "badRequest", "A batch is multipart/mixed.")
    answers = []
    for part in whole.iter_parts():
        sent = part.get_payload(decode=True)
        assert isinstance(sent, bytes)
        line, _, rest = sent.replace(b"\r\n", b"\n").partition(b"\n")
        verb, target, *_ = line.decode().split()
        headers, _, asked = rest.partition(b"\n\n")
        given = BytesParser(policy=HTTP).parsebytes(headers + b"\n\n")
        status, told = serve(verb, target, given.get("Authorization", authorization), asked)
        answers.append(_part(str(part.get("Content-ID", "")), status, told))
    text = "".join(answers) + f"--{_BOUNDARY}--\r\n"
    return f"multipart/mixed; boundary={_BOUNDARY}", text.encode()


def _part(content_id: str, status: int, told: Json) -> str:
    body = json.dumps(told)
    named = f"Content-ID: <response-{content_id.strip('<>')}>\r\n" if content_id else ""
    return (
        f"--{_BOUNDARY}\r\nContent-Type: application/http\r\n{named}\r\n"
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Failed'}\r\n"
        f"Content-Type: application/json; charset=UTF-8\r\nContent-Length: {len(body)}\r\n\r\n{body}\r\n"
    )
