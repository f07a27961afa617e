"""Checks of the network for `stoker check gce`: whether machines reach Cloud Storage and one another."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.model.errors import NotFound, ProviderError
from stoker.model.resources import GceResources
from stoker.model.spec import Spec, master_port
from stoker.providers.base import CheckResult
from stoker.providers.gce import network
from stoker.providers.gce.client import Api
from stoker.providers.gce.network import NodeTraffic, Subnetwork
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.verdicts import error_text, lookup_fix, missing_result


def network_results(api: Api, place: ProjectRegion, spec: Spec) -> Iterator[CheckResult]:
    """Check the subnetwork, its way to Cloud Storage, and the firewall between nodes."""
    gce = spec.resources.gce or GceResources()
    try:
        subnetwork = network.find(api, place, gce.network)
    except NotFound as error:
        yield CheckResult("network", False, error_text(error), network.fix_for_missing(error, place, gce.network))
        return
    except ProviderError as error:
        yield missing_result("network", error, "compute.networks.get and compute.subnetworks.list")
        return
    yield CheckResult("network", True, f"{subnetwork.subnetwork} of {subnetwork.name}, {subnetwork.range}")
    yield _storage_result(subnetwork, place.region, gce.public_ip is not False)
    try:
        rules = network.firewall_rules(api, subnetwork)
    except ProviderError as error:
        yield CheckResult("between nodes", None, error_text(error), lookup_fix(error, "compute.firewalls.list"))
        return
    traffic = network.node_traffic(rules, master_port(spec), subnetwork.range)
    yield _traffic_result(subnetwork, traffic, spec)


def _storage_result(subnetwork: Subnetwork, region: str, public_ip: bool) -> CheckResult:
    if subnetwork.private_access:
        return CheckResult("way to storage", True, "Private Google Access: machines need no public address")
    if public_ip:
        return CheckResult("way to storage", True, "by the machines' public addresses")
    fix = (
        f"gcloud compute networks subnets update {subnetwork.subnetwork} --region {region}"
        f" --project {subnetwork.project} --enable-private-ip-google-access"
    )
    detail = f"without a public address none, unless {subnetwork.name} has a Cloud NAT"
    return CheckResult("way to storage", None, detail, fix)


def _traffic_result(subnetwork: Subnetwork, traffic: NodeTraffic, spec: Spec) -> CheckResult:
    """A closed network fails the check only for a job of several nodes."""
    name, port = subnetwork.name, master_port(spec)
    fix = (
        f"gcloud compute firewall-rules create stoker-internal --project {subnetwork.project} --network {name}"
        f" --allow tcp,udp,icmp --source-ranges {subnetwork.range}"
    )
    if traffic == "all":
        return CheckResult("between nodes", True, f"{name} lets nodes reach each other on all ports")
    if traffic == "port":
        detail = f"{name} lets nodes reach each other on MASTER_PORT {port} alone; NCCL and gloo use further ports"
        return CheckResult("between nodes", None, detail, fix)
    detail = f"{name} does not let nodes reach each other on MASTER_PORT {port}"
    return CheckResult("between nodes", False if spec.nodes > 1 else None, detail, fix)
