"""What a provider cannot honour is refused by name; what may not be left open is filled in, and told."""

from __future__ import annotations

import pytest

from stoker.jobfile import apply_default_limits, assignments, check_honoured, parse_job, read_layer, resolve
from stoker.jobfile.field_table import walk
from stoker.jobfile.provider_fields import ALWAYS_HONOURED
from stoker.jobfile.reference import EXAMPLE
from stoker.model.errors import SpecError
from stoker.model.offerings import Capabilities
from stoker.model.spec import Spec


def able(*honours: str, paid: bool = False) -> Capabilities:
    return Capabilities(
        paid=paid,
        token_lifetime_s=60,
        newborn_s=1,
        boot_timeout_s=1,
        silence_s=1,
        honours=frozenset(honours),
    )


def parse(text: str) -> Spec:
    return parse_job([read_layer(text, "stoker.yaml")])


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("resources.region", "resources: {region: a}"),
        ("resources.zones", "resources: {zones: a}"),
        ("resources.gpus", "resources: {gpus: A100}"),
        ("resources.disk", "resources: {disk: 1GB}"),
        ("environment.conda", "environment: {conda: e.yml}"),
        ("environment.system_packages", "environment: {system_packages: false}"),
        ("environment.container.image", "environment: {container: {image: a}}"),
        ("retry.hold_on_failure", "retry: {hold_on_failure: 5m}"),
        ("logs.cloudwatch", "logs: {cloudwatch: /a}"),
        ("logs.cloud_logging", "logs: {cloud_logging: stoker}"),
    ],
)
def test_a_field_is_refused_by_name_unless_it_is_listed(field: str, text: str) -> None:
    spec = parse(f"run: x\n{text}\n")
    with pytest.raises(SpecError) as caught:
        check_honoured(spec, "cloud", able("resources.machine"))
    assert str(caught.value) == f"{field}: cloud cannot honour this; leave it out or choose another provider"
    check_honoured(spec, "cloud", able(field))
    check_honoured(spec, "cloud", able(field.rpartition(".")[0] or field))
    check_honoured(spec, "cloud", able(f"{field}_s" if field.endswith("failure") else field))


def test_a_name_covers_only_what_is_below_it() -> None:
    spec = parse("run: x\nresources: {region: a}\n")
    with pytest.raises(SpecError):
        check_honoured(spec, "cloud", able("resources.reg", "resources.region.a", "res"))


@pytest.mark.parametrize(
    ("choice", "text", "message"),
    [
        ("inputs.mode:mount", "inputs: {a: {from: b, mode: mount}}", "inputs.a: cloud cannot honour mode: mount"),
        ("inputs.mode:copy", "inputs: {a: b}", "inputs.a: cloud cannot honour mode: copy"),
        ("secrets:aws-sm", "secrets: {A: 'aws-sm:x'}", "secrets.A: cloud cannot honour references of the kind aws-sm"),
        ("secrets:env", "secrets: {A: env}", "secrets.A: a variable of your computer cannot go to cloud's"),
    ],
)
def test_choices_are_honoured_one_by_one(choice: str, text: str, message: str) -> None:
    spec = parse(f"run: x\n{text}\n")
    others = {"inputs", "secrets", "inputs.mode", "inputs.mode:stream", "secrets:gcp-sm"}
    with pytest.raises(SpecError) as caught:
        check_honoured(spec, "cloud", able(*others))
    assert str(caught.value).startswith(message)
    check_honoured(spec, "cloud", able(choice))


def test_what_needs_no_provider_is_always_honoured() -> None:
    text = """
name: a
run: x
params: {a: 1}
env: {A: b}
setup: y
nodes: 3
resources: {provider: cloud, spot: true, max_price: 3}
checkpoints: {dir: a, keep: 1}
resume_from: b
outputs: o
metrics: {a: '(b)'}
limits: {max_runtime: 1h, max_cost: 3, max_wait: 1h, stall: 1h}
retry: {user_errors: 2, on_demand_after: 1}
tags: {a: b}
"""
    check_honoured(parse(text), "cloud", able())
    assert {dotted for dotted, _ in walk()} >= ALWAYS_HONOURED


def test_everything_that_is_refused_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        check_honoured(parse(EXAMPLE), "ec2", able())
    for field in ("resources.gpus", "environment.python", "logs.cloudwatch", "inputs.val", "resources.gce"):
        assert field in str(caught.value)
    assert "resources.ec2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_providers_section_is_refused_in_the_job_and_not_in_shared_layers() -> None:
    user = read_layer("resources: {ec2: {subnet: s}}\n", "user", shared=True)
    resolve([user, read_layer("run: x\n", "stoker.yaml")], lambda _: able())
    job = read_layer("run: x\nresources:\n  ec2: {key: k}\n", "stoker.yaml")
    with pytest.raises(SpecError) as caught:
        resolve([user, job], lambda _: able())
    assert str(caught.value) == (
        "stoker.yaml:3: resources.ec2: is for ec2, and this job runs on local; "
        "leave it out or set resources.provider: ec2"
    )
    with pytest.raises(SpecError, match=r"^--set: resources\.ec2: is for ec2"):
        resolve([read_layer("run: x\n", "f"), assignments(["resources.ec2.key=k"])], lambda _: able())


def test_shared_resources_that_do_not_apply_are_left_out_and_told() -> None:
    user = read_layer("resources: {region: us-east-1, cpus: 8}\n", "user.yaml", shared=True)
    resolved = resolve([user, read_layer("run: x\n", "stoker.yaml")], lambda _: able("resources.cpus"))
    assert resolved.spec.resources.region is None
    assert resolved.spec.resources.cpus == 8
    assert resolved.warnings == ("user.yaml: resources.region does not apply to local and is left out",)
    job = read_layer("run: x\nresources: {region: b}\n", "stoker.yaml")
    with pytest.raises(SpecError, match=r"^stoker\.yaml:2: resources\.region: local cannot honour this"):
        resolve([user, job], lambda _: able("resources.cpus"))


def test_shared_settings_outside_resources_are_never_dropped() -> None:
    policy = read_layer("retry: {hold_on_failure: 5m}\n", "defaults", shared=True)
    with pytest.raises(SpecError, match=r"^defaults:1: retry\.hold_on_failure: local cannot honour this"):
        resolve([policy, read_layer("run: x\n", "stoker.yaml")], lambda _: able())


def test_the_provider_that_was_chosen_is_asked() -> None:
    asked = []

    def capabilities(name: str) -> Capabilities:
        asked.append(name)
        return able()

    resolve([read_layer("run: x\nresources: {provider: cloud}\n", "f")], capabilities)
    assert asked == ["cloud"]


def test_paid_providers_bound_what_is_unbounded() -> None:
    spec, told = apply_default_limits(parse("run: x\n"), able(paid=True))
    assert spec.limits.max_runtime_s == 86400.0
    assert len(told) == 1
    assert "24 h" in told[0]
    assert apply_default_limits(parse("run: x\n"), able()) == (parse("run: x\n"), ())
    for limits in ("{max_runtime: 1h}", "{max_cost: 5}"):
        bounded = parse(f"run: x\nlimits: {limits}\n")
        assert apply_default_limits(bounded, able(paid=True)) == (bounded, ())
