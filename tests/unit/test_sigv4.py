"""Signatures against those that AWS publishes, and against botocore's own."""

from __future__ import annotations

import hashlib
import random
from datetime import datetime, timedelta, timezone

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from stoker.cloudapi.aws.sigv4 import Credentials, encoded, sign

# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
S3 = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
S3_AT = datetime(2013, 5, 24, tzinfo=timezone.utc)
# The test suite of Signature Version 4.
SUITE = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SUITE_AT = datetime(2015, 8, 30, 12, 36, tzinfo=timezone.utc)


def signature(headers: dict[str, str]) -> str:
    return headers["Authorization"].rpartition("Signature=")[2]


@pytest.mark.parametrize(
    ("method", "target", "headers", "body", "expected"),
    [
        (
            "GET",
            "/test.txt",
            {"Range": "bytes=0-9"},
            "",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            encoded("/test$file.text"),
            {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            "Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        ("GET", "/?lifecycle", {}, "", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("GET", "/?max-keys=2&prefix=J", {}, "", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ("GET", "/?prefix=J&max-keys=2", {}, "", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_examples_of_s3(method: str, target: str, headers: dict[str, str], body: str, expected: str) -> None:
    digest = hashlib.sha256(body.encode()).hexdigest()
    url = f"https://examplebucket.s3.amazonaws.com{target}"
    assert signature(sign(method, url, S3, "us-east-1", S3_AT, headers, digest)) == expected


@pytest.mark.parametrize(
    ("method", "target", "headers", "token", "expected"),
    [
        ("GET", "/", {}, None, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        (
            "GET",
            "/",
            {},
            "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267",
            "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
        ),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            {},
            None,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        ("POST", "/", {}, None, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    ],
    ids=["get-vanilla", "get-vanilla-with-session-token", "get-vanilla-query-order-key-case", "post-vanilla"],
)
def test_the_suite_of_signature_version_4(
    method: str, target: str, headers: dict[str, str], token: str | None, expected: str
) -> None:
    keys = SUITE._replace(token=token)
    url = f"https://example.amazonaws.com{target}"
    signed = sign(method, url, keys, "us-east-1", SUITE_AT, headers, service="service")
    assert signed["x-amz-date"] == "20150830T123600Z"
    assert signature(signed) == expected


def _random_request(chance: random.Random) -> tuple[str, str, dict[str, str], bytes, Credentials, str, datetime]:
    letters = "abcXYZ019-_.~ !$&'()*+,;=:@/%äß漢"
    path = "/" + "".join(chance.choices(letters, k=chance.randint(0, 30)))
    names = ["list-type", "prefix", "a b", "ü", "x", "versionId", "x-id"]
    query = "&".join(
        f"{encoded(name).replace('/', '%2F')}={encoded(''.join(chance.choices(letters, k=4))).replace('/', '%2F')}"
        for name in chance.sample(names, chance.randint(0, 4))
    )
    host = chance.choice(["b.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "s3.cn-north-1.amazonaws.com.cn"])
    url = f"https://{host}{encoded(path)}" + (f"?{query}" if query else "")
    headers = {"Range": "bytes=0-9", "x-amz-storage-class": "  TWO   words ", "Content-Type": "text/plain"}
    headers = {name: headers[name] for name in chance.sample(sorted(headers), chance.randint(0, 3))}
    token = chance.choice([None, "tok/en+=="])
    keys = Credentials("AKIA" + str(chance.randint(0, 10**9)), f"s{chance.random()}/+", token)
    at = SUITE_AT + timedelta(seconds=chance.randint(0, 10**9))
    body = chance.randbytes(chance.randint(0, 50))
    return chance.choice(["GET", "PUT", "HEAD", "DELETE"]), url, headers, body, keys, "eu-west-1", at


def test_botocore_signs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    for _ in range(300):
        method, url, headers, body, keys, region, at = _random_request(chance)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda at=at: at)
        digest = hashlib.sha256(body).hexdigest()
        ours = sign(method, url, keys, region, at, headers, digest)
        theirs = AWSRequest(method, url, headers=headers, data=body)
        theirs.context["payload_signing_enabled"] = True
        botocore.auth.S3SigV4Auth(BotocoreCredentials(*keys), "s3", region).add_auth(theirs)
        assert theirs.headers["Authorization"] == ours["Authorization"], url


def test_what_is_signed_is_what_is_sent() -> None:
    sent = sign("GET", "https://b.example/k", S3._replace(token="t"), "us-east-1", S3_AT, {"Range": "bytes=0-9"})
    names = sent["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert set(names) == {name.lower() for name in sent if name != "Authorization"} | {"host"}
