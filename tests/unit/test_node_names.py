"""The names of the nodes of a gang: what each calls itself, and nothing that a fact could smuggle."""

from __future__ import annotations

import pytest

from stoker.core.node_names import hosts_text, is_address, is_host_name, is_own_name, node_names

TWO = ("10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    "hosts",
    [
        ("test-vm-1", "test-vm-2"),
        ("ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal"),
        ("Big_Box", "small"),
        # Machines that are numbered in their own way keep their names.
        ("node-1", "node-0"),
        ("0123456789ab", "a"),
    ],
)
def test_nodes_are_called_what_their_machines_call_themselves(hosts: tuple[str, ...]) -> None:
    assert node_names(hosts, TWO) == hosts
    assert " ".join(node_names(hosts, TWO)).split() == list(hosts)


def test_machines_of_one_name_get_one_each() -> None:
    assert node_names(("laptop", "laptop"), TWO) == ("node-0", "node-1")
    assert node_names(("clone", "other", "Clone"), (*TWO, "10.0.0.3")) == ("node-0", "other", "node-2")
    assert node_names(("localhost", "localhost.localdomain"), TWO) == ("node-0", "node-1")
    # A name that is made is no other machine's.
    assert node_names(("a", "node-2", "a"), (*TWO, "10.0.0.3")) == ("stoker-node-0", "node-2", "stoker-node-2")


@pytest.mark.parametrize(
    "host",
    [
        "a b",
        "a\n10.0.0.9 s3.amazonaws.com",
        "a\tb",
        "a#b",
        "-a",
        "a-",
        "a..b",
        ".a",
        "a.",
        "10.0.0.9",
        "12",
        "0x7f",
        "a.0x1",
        "größe",
        "a" * 65,
        "$(reboot)",
        "a,b",
        "::1",
        "metadata",
        "Metadata.google.internal",
        "instance-data.ec2.internal",
        "localhost",
        "s3.amazonaws.com",
    ],
)
def test_a_hostile_name_becomes_one_of_ours(host: str) -> None:
    assert node_names(("honest", host), TWO) == ("honest", "node-1")
    assert node_names((host, "honest"), TWO) == ("node-0", "honest")


def test_a_name_elsewhere_does_not_pass_among_full_names() -> None:
    hosts = ("ip-1.ec2.internal", "storage.googleapis.com")
    assert node_names(hosts, TWO) == ("node-0", "node-1")


def test_a_node_that_can_have_no_name_goes_by_its_address() -> None:
    assert node_names(("", ""), TWO) == TWO
    assert node_names(("a", ""), TWO) == ("a", "10.0.0.2")
    # Facts of another length than the gang has.
    assert node_names((), TWO) == node_names(("a",), TWO) == node_names(("a", "b", "c"), TWO) == TWO


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (("laptop",), "laptop"),
        (("localhost",), "localhost"),
        ((), "10.0.0.1"),
        (("",), "10.0.0.1"),
        (("a b",), "10.0.0.1"),
    ],
)
def test_a_node_alone_is_called_what_its_machine_is(hosts: tuple[str, ...], name: str) -> None:
    assert node_names(hosts, TWO[:1]) == (name,)


def test_the_list_of_thousands_of_long_names_fits_into_a_variable() -> None:
    count = 10_000
    hosts = [f"{'x' * 50}-{rank}" for rank in range(count)]
    names = node_names(hosts, ["10.0.0.1"] * count)
    assert len(set(names)) == count and len(" ".join(names)) < 128 * 1024
    assert node_names(hosts[:2000], ["10.0.0.1"] * 2000) == tuple(hosts[:2000])


def test_addresses() -> None:
    assert all(map(is_address, ("10.0.0.1", "fd00::1", "127.0.0.1")))
    assert not any(
        map(is_address, ("", "a", "10.0.0.1\n10.0.0.2 x", "10.0.0.1 x", "10.0.0", "fe80::1%eth0", "fe80::1%\nx"))
    )


def test_own_names() -> None:
    assert is_host_name("localhost") and not is_own_name("localhost")
    assert is_own_name("a" * 64) and not is_own_name("")


KNOWN = """\
127.0.0.1 localhost
127.0.1.1\tvm-1.corp.example vm-1  # of the installer
::1 localhost ip6-localhost

# Added by Google
10.0.0.2 vm-2.c.project.internal VM-2
10.0.0.9 vm-9
"""


def test_a_name_has_one_address() -> None:
    text = hosts_text(KNOWN, {"vm-1": "10.0.0.1", "vm-2": "10.0.0.2", "vm-3": "fd00::3"}, "  # ours")
    assert text == (
        "127.0.0.1 localhost\n"
        "127.0.1.1\tvm-1.corp.example\n"
        "::1 localhost ip6-localhost\n"
        "\n"
        "# Added by Google\n"
        "10.0.0.2 vm-2.c.project.internal VM-2\n"
        "10.0.0.9 vm-9\n"
        "10.0.0.1\tvm-1  # ours\n"
        "fd00::3\tvm-3  # ours\n"
    )


def test_what_was_added_is_replaced() -> None:
    first = hosts_text("127.0.0.1 localhost", {"a": "10.0.0.1", "b": "10.0.0.2"}, "  # ours")
    second = hosts_text(first, {"a": "10.0.0.1", "c": "10.0.0.3"}, "  # ours")
    assert second == "127.0.0.1 localhost\n10.0.0.1\ta  # ours\n10.0.0.3\tc  # ours\n"
    assert hosts_text(second, {"a": "10.0.0.1", "c": "10.0.0.3"}, "  # ours") == second
