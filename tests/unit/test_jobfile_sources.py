"""Where packages come from: what a job file may say about it, and that it never says a password."""

from __future__ import annotations

import pytest

from stoker import Job
from stoker.jobfile.layers import defaults_layer
from stoker.jobfile.provider_fields import check_honoured
from stoker.model import secret_refs
from stoker.model.errors import SpecError
from stoker.model.offerings import Capabilities
from stoker.model.package_sources import Address, DebSource, private_variables, read_address, read_deb, user_name
from stoker.model.secret_refs import Reference
from stoker.model.spec import Environment, PackageIndex, Spec


def spec(**environment: object) -> Spec:
    return Job(run="python train.py", environment=environment).spec()


@pytest.mark.parametrize("field", ["index", "apt_mirror", "conda_channel"])
def test_a_password_in_an_address_is_refused_and_not_repeated(field: str) -> None:
    with pytest.raises(SpecError) as failure:
        spec(**{field: {"url": "https://jane:hunter2@packages.example/simple"}})
    assert f"environment.{field}.url: holds a password" in str(failure.value)
    assert "secret: env:NAME" in str(failure.value)
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize("secret", ["hunter2", "env", "env:", "aws-sm:", "aws-codeartifact:"])
def test_what_is_no_reference_is_not_repeated(secret: str) -> None:
    with pytest.raises(SpecError, match=r"environment.index.secret: expected env:NAME, aws-sm:NAME") as failure:
        spec(index={"url": "https://packages.example/simple", "secret": secret})
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize(
    "url", ["packages.example/simple", "ftp://packages.example", "https://", "https://a b", "https://host:no"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(SpecError, match="expected an address such as"):
        spec(index={"url": url})


@pytest.mark.parametrize("name", ["-o", "libgl1-", "lib gl1", "Libgl1", "libgl1;id", "$(id)", "a"])
def test_what_is_no_debian_package(name: str) -> None:
    with pytest.raises(SpecError, match=r"environment.apt\[0\]: .* is not the name of a Debian package"):
        spec(apt=[name])


def test_debian_packages() -> None:
    names = ("libgl1", "g++", "libstdc++6:arm64", "libgl1=1.6.0-1+b1", "curl/bookworm-backports")
    assert spec(apt=list(names)).environment.apt == names


def test_addresses() -> None:
    assert read_address("https://jane@host:8443/a?b#c") == Address("https://host:8443/a?b#c", "jane")
    assert read_address("https://a%40b@host/") == Address("https://host/", "a@b")
    assert read_address("file:///srv/wheels") == Address("file:///srv/wheels")
    assert read_deb("https://host/debian") == DebSource(Address("https://host/debian"))
    assert read_deb("deb [trusted=yes arch=amd64] http://jane@host/d ./") == DebSource(
        Address("http://host/d", "jane"), "[trusted=yes arch=amd64]", "./"
    )
    assert read_deb("[ trusted=yes ] http://host/d bookworm main").options == "[ trusted=yes ]"
    with pytest.raises(ValueError, match="expected a `]`"):
        read_deb("[trusted=yes http://host/d")


@pytest.mark.parametrize(
    ("url", "secret", "user"),
    [
        ("https://host/simple", "env:TOKEN", "__token__"),
        ("https://jane@host/simple", "env:TOKEN", "jane"),
        ("https://host/simple", "aws-codeartifact:team@123456789012", "aws"),
        ("https://host/simple", "gcp-token", "oauth2accesstoken"),
        ("https://jane@host/simple", "gcp-token", "jane"),
    ],
)
def test_who_asks(url: str, secret: str, user: str) -> None:
    assert user_name(PackageIndex(url, secret), read_address(url)) == user


def test_a_reference_of_a_kind_that_the_provider_cannot_read_is_refused() -> None:
    asked = spec(index={"url": "https://host/simple", "secret": "gcp-token"})
    base = {"paid": False, "token_lifetime_s": 1.0, "newborn_s": 1.0, "boot_timeout_s": 1.0, "silence_s": 1.0}
    able = Capabilities(**base, honours=frozenset({"environment.index", "secrets:gcp-token"}))
    check_honoured(asked, "able", able)
    unable = Capabilities(**base, honours=frozenset({"environment.index", "secrets:env"}))
    with pytest.raises(SpecError, match=r"environment.index.secret: unable cannot honour references of the kind gcp"):
        check_honoured(asked, "unable", unable)


@pytest.mark.parametrize(("field", "serves"), [("apt_mirror", "apt"), ("conda_channel", "conda")])
def test_a_source_of_nothing_is_refused(field: str, serves: str) -> None:
    source = {"url": "https://host/packages"}
    with pytest.raises(SpecError, match=rf"environment\.{field}: is for environment\.{serves}, which is not set"):
        spec(**{field: source})
    spec(**{field: source, serves: ["libgl1"] if serves == "apt" else "environment.yml"})
    # The store's defaults name a mirror for all jobs.
    policy = defaults_layer(f"environment: {{{field}: {{url: 'https://host/packages'}}}}".encode())
    assert Job(run="python train.py").spec([policy]).environment != Environment()


def test_a_value_of_a_variable_that_is_a_json_object() -> None:
    assert secret_refs.parse("env:LOGINS#pw") == Reference("env", "LOGINS", key="pw")
    asked = spec(index={"url": "https://host/simple", "secret": "env:LOGINS#pw"})
    assert private_variables(asked.environment) == {"LOGINS"}
    assert Job(run="x", secrets={"A": "env:LOGINS#pw"}).spec().secrets == {"A": "env:LOGINS#pw"}
    with pytest.raises(ValueError, match="expected env:NAME"):
        secret_refs.parse("env#pw")
