"""The policy file: read strictly, each mistake in one line that says where and what to do."""

from __future__ import annotations

from datetime import date

import pytest

from stoker.model.errors import SpecError
from stoker.model.policy import (
    SUBJECTS,
    Budget,
    ConcurrentRule,
    DefaultsRule,
    DenyRule,
    Exemption,
    StallRule,
    UtilizationRule,
)
from stoker.policy.policy_file import MAX_BYTES, parse_policy

WHOLE = """
rules:
  - name: who-pays
    tags: {project: any, team: [vision, nlp], ticket: "/[A-Z]+-[0-9]+/"}
  - providers: [ec2, gce]
  - regions: us-*
    then: warn
  - machines: ["g5.*"]
    for: {team: students}
    except:
      - {job: big-one-7f3k, until: 2026-12-31, why: the demo}
  - images: [dlami/*]
  - deny: {machines: [p5.*], tags: {stage: prod*}}
  - defaults: {tags: {stage: dev}, spot: prefer, max_runtime: 12h, max_cost: 50, max_wait: 1h}
  - concurrent: {gpus: 16, nodes: 4, by: [team, project]}
  - max_nodes: 8
  - max_runtime: 72h
    audit: true
  - max_wait: 6h
  - max_cost: 500
    then: refuse
  - budget: {dollars: 5000, period: month, by: team, warn_at: 90%}
  - max_retries: 3
  - stall: {below: 2%, window: 1m, windows: 2, after: 5m, working: 1h}
    then: stop
  - min_gpu_utilization: {value: 80%, over: 1h, after: 30m}
  - metric: {name: loss, no_improvement: 6h, goal: max, after: 1m}
  - resume: {min_runtime: 1h, times: 2}
  - spot: {on_demand_after: 2, back_after: 6h}
  - market: {most_reclaims: 3, over: 12h}
  - failure: {log: "EFA .* down", exit_code: 1}
"""


def test_every_subject_and_every_field() -> None:
    policy = parse_policy(WHOLE.encode(), "p.yaml", version=3)
    assert {rule.subject for rule in policy.rules} == set(SUBJECTS)
    named = {rule.name: rule for rule in policy.rules}
    assert named["who-pays"].tags == {"project": ("any",), "team": ("vision", "nlp"), "ticket": ("/[A-Z]+-[0-9]+/",)}
    assert named["machines"].scope == {"team": ("students",)}
    assert named["machines"].exempt == (Exemption(job="big-one-7f3k", until=date(2026, 12, 31), why="the demo"),)
    assert (named["max-runtime"].max_runtime_s, named["max-runtime"].audit) == (72 * 3600, True)
    assert [named[name].action for name in ("who-pays", "regions", "max-runtime", "max-cost")] == [
        *("refuse", "warn", "stop", "refuse")
    ]
    assert named["budget"].budget == Budget(dollars=5000, period="month", by="team", warn_at=0.9)
    assert named["budget"].action == "wait"
    assert named["deny"].deny == DenyRule(machines=("p5.*",), tags={"stage": ("prod*",)})
    assert named["concurrent"].concurrent == ConcurrentRule(gpus=16, nodes=4, by=("team", "project"))
    filled = DefaultsRule({"stage": "dev"}, "prefer", max_runtime_s=43200, max_cost=50, max_wait_s=3600)
    assert named["defaults"].defaults == filled
    assert named["stall"].stall == StallRule(below=0.02, window_s=60, windows=2, after_s=300, working_s=3600)
    assert named["min-gpu-utilization"].min_gpu_utilization == UtilizationRule(value=0.8, over_s=3600, after_s=1800)
    assert policy.version == 3 and len(policy.digest) == 64
    assert parse_policy(WHOLE.encode() + b"\n", "p.yaml").digest != policy.digest
    assert parse_policy(b"rules: []", "p.yaml").rules == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rule: []", "p.yaml:1: rule: unknown field; did you mean rules?"),
        ("rules: {}", "p.yaml:1: rules: expected a list, found a mapping"),
        ("rules: [5]", "p.yaml:1: rules[0]: expected fields (name, tags, providers, regions, …), found the number 5"),
        (
            "rules:\n- max_nodes: 1\n  max_nods: 3",
            "p.yaml:3: rules[0].max_nods: unknown field; did you mean max_nodes?",
        ),
        ("rules:\n- gpus: 3", "p.yaml:2: rules[0].gpus: unknown field; there are: name, tags, "),
        ("rules:\n- then: stop", "p.yaml:2: rules[0]: says nothing; it is about one of tags, providers, "),
        (
            "rules:\n- tags: {a: any}\n  max_nodes: 3",
            "p.yaml:3: rules[0].max_nodes: is about tags and max_nodes; make them two rules",
        ),
        (
            "rules:\n- max_nodes: 3\n  then: stop",
            "p.yaml:3: rules[0].then: stop cannot be what happens for max_nodes; write refuse or warn",
        ),
        (
            "rules:\n- max_nodes: 3\n  then: explode",
            "p.yaml:3: rules[0].then: explode cannot be what happens for max_nodes; write refuse or warn",
        ),
        ("rules:\n- max_nodes: 3\n  then: [stop]", "p.yaml:3: rules[0].then: a list cannot be what happens for"),
        ("rules:\n- budget: {dollars: 5}", "rules[0].budget.period: is missing; write day, week, month or quarter"),
        ("rules:\n- max_nodes: 0", "p.yaml:2: rules[0].max_nodes: must be at least 1, found 0"),
        (
            "rules:\n- max_nodes: 1\n- max_nodes: 2",
            "p.yaml:3: rules[1].name: is called max-nodes, as rules[0] is; give it a name of its own",
        ),
        ("rules:\n- machines: []", "p.yaml:2: rules[0].machines: allows nothing; leave the rule out"),
        ("rules:\n- tags: {a: '/[/'}", "p.yaml:2: rules[0].tags.a: not a regular expression"),
        ("rules:\n- failure: {}", "p.yaml:2: rules[0].failure: has at least one of log, exit_code and evidence"),
        (
            "rules:\n- failure: {exit_code: 300}",
            "p.yaml:2: rules[0].failure.exit_code: 300 is no exit code of a failure; write one from 1 to 255",
        ),
        (
            "rules:\n- failure: {evidence: foo}",
            "rules[0].failure.evidence: foo is nothing that machines report; write oom, disk-full, or xid:79",
        ),
        (
            "rules:\n- metric: {name: a, above: 3, goal: min}",
            "p.yaml:2: rules[0].metric.goal: is for no_improvement alone; leave it out",
        ),
        ("rules:\n# - max_nodes: 3\n", "p.yaml:1: rules: has nothing in it; to have no rules write `rules: []`"),
        ("- max_nodes: 3\n", "p.yaml:1: expected fields such as `rules: [{max_nodes: 8}]`, found a list"),
        ("rules: []\n---\nrules: []\n", "not valid YAML: holds more than one document (`---`); leave one"),
        ("rules:\n- failure: {log: '('}", "p.yaml:2: rules[0].failure.log: not a regular expression"),
        (
            "rules:\n- max_nodes: 1\n  except: [{job: a, until: tomorrow, why: b}]",
            "p.yaml:3: rules[0].except[0].until: expected a day such as 2026-12-31, found text 'tomorrow'",
        ),
        ("rules:\n- max_nodes: 1\n  except: [{job: a, until: 2026-01-01}]", "rules[0].except[0].why: is missing"),
        (
            "rules:\n- max_nodes: 1\n  except: [{job: vip, until: 2026-01-01, why: x}]",
            "p.yaml:3: rules[0].except[0].job: vip is a name, which any submitter can give to a job; write the id",
        ),
        (
            "rules:\n- max_nodes: 1\n  except: [{until: 2026-01-01, why: x}]",
            "rules[0].except[0].job: has one of job and submitter",
        ),
        (
            "rules:\n- max_nodes: 1\n  except: [{job: a-7f3k, submitter: b, until: 2026-01-01, why: x}]",
            "rules[0].except[0].job: has one of job and submitter",
        ),
        (
            "rules:\n- min_gpu_utilization: {value: 180%}",
            "p.yaml:2: rules[0].min_gpu_utilization.value: expected a share such as 80% or 0.8, found text '180%'",
        ),
        ("rules:\n- min_gpu_utilization: {over: 1h}", "rules[0].min_gpu_utilization.value: is missing"),
        ("rules:\n- metric: {name: loss}", "p.yaml:2: rules[0].metric: has one of nan, above, below and"),
        ("rules:\n- metric: {name: a, nan: true, above: 3}", "rules[0].metric: has one of nan, above, below"),
        ("rules:\n- budget: {period: day}", "rules[0].budget.dollars: is missing"),
        ("rules:\n- budget: {dollars: 0, period: day}", "rules[0].budget.dollars: must be more than 0, found 0"),
        (
            "rules:\n- budget: {dollars: 5, period: year}",
            "rules[0].budget.period: expected day or week or month or quarter",
        ),
        ("rules:\n- budget: {dollars: 5, period: day, by: ''}", "rules[0].budget.by: is empty; leave it out"),
        (
            "rules:\n- budget: {dollars: 5, period: day}\n  then: stop",
            "p.yaml:3: rules[0].then: stop cannot be what happens for budget; write wait or refuse or warn",
        ),
        ("rules: [", "p.yaml:1: "),
    ],
)
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(SpecError) as failure:
        parse_policy(text.encode(), "p.yaml")
    assert told in str(failure.value)
    assert "\n" not in str(failure.value)


def test_one_that_is_too_large() -> None:
    with pytest.raises(SpecError, match="a policy has at most"):
        parse_policy(b"#" * (MAX_BYTES + 1), "p.yaml")


def test_training_jobs_of_others_obey_where_the_policy_says_so() -> None:
    assert parse_policy(b"rules: []", "p.yaml").sagemaker is None
    found = parse_policy(b"sagemaker: {regions: [us-east-1, eu-west-1], clone: false}", "p.yaml").sagemaker
    assert found is not None and (found.regions, found.clone) == (("us-east-1", "eu-west-1"), False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sagemaker: {}", "p.yaml:1: sagemaker.regions: is missing"),
        ("sagemaker: {regions: []}", "p.yaml:1: sagemaker.regions: names none; leave `sagemaker` out"),
        ("sagemaker: {regions: us-*}", "p.yaml:1: sagemaker.regions: us-* is no region; write one such as us-east-1"),
        (
            "sagemaker: {regions: us-east-1, clones: 3}",
            "p.yaml:1: sagemaker.clones: unknown field; did you mean clone?",
        ),
    ],
)
def test_what_sagemaker_is_told_is_read_strictly(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(text.encode(), "p.yaml")
    assert str(caught.value).startswith(told)


def test_channels() -> None:
    text = """
notify:
  - slack://a/b/c
  - slack://d/e/f
  - {to: env:CHAT, events: failed, for: {team: nlp}, name: on-call, at_most: 3}
  - {to: env:CHAT, events: [rule, orphan]}
"""
    policy = parse_policy(text.encode(), "p.yaml")
    assert [(each.name, each.to) for each in policy.notify] == [
        ("slack", "slack://a/b/c"),
        ("slack-2", "slack://d/e/f"),
        ("on-call", "env:CHAT"),
        ("chat", "env:CHAT"),
    ]
    assert policy.notify[2].events == ("failed",) and policy.notify[2].scope == {"team": ("nlp",)}
    assert (policy.notify[2].at_most, policy.notify[3].at_most) == (3, 20)
    assert (
        parse_policy(b"notify: env:CHAT\n", "p.yaml").notify == parse_policy(b"notify: [env:CHAT]\n", "p.yaml").notify
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("notify: [s3cr3t]", "p.yaml:1: notify[0]: expected an address such as sns:arn"),
        ("notify: s3cr3t", "p.yaml:1: notify: expected an address such as sns:arn"),
        ("notify: [{to: s3cr3t}]", "p.yaml:1: notify[0].to: expected an address such as sns:arn"),
        ("notify: [{to: 3}]", "p.yaml:1: notify[0].to: expected an address"),
        ("notify: [{events: [failed]}]", "p.yaml:1: notify[0].to: is missing"),
        ("notify: [{to: env:X, events: [fail]}]", "there is no event 'fail'; did you mean failed?"),
        ("notify: [{to: env:X, at_most: 0}]", "notify[0].at_most: must be at least 1"),
        ("notify: [{to: env:X, name: a}, {to: env:Y, name: a}]", "notify[1].name: a is another's name already"),
        ("notify: [{to: env:X, audit: true}]", "notify[0].audit: unknown field"),
        ("notify: {to: env:X}", "notify: expected a list"),
    ],
)
def test_channels_that_are_none(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(text.encode(), "p.yaml")
    assert problem in str(caught.value) and "s3cr3t" not in str(caught.value) and "\n" not in str(caught.value)


NINES = "9" * 400


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            f"max_cost: {NINES}",
            "rules[0].max_cost: expected a number of a size that a computer can hold, found the number 999",
        ),
        ("max_cost: 1.0e+308", "rules[0].max_cost: must be at most 1000000000, found 1.0e+308"),
        (f"max_runtime: {NINES}", "rules[0].max_runtime: expected a duration"),
        (f"max_runtime: {NINES}h", "rules[0].max_runtime: must be at most 10 years, found 999"),
        ("max_wait: 1.0e+300", "rules[0].max_wait: must be at most 10 years, found 1.0e+300"),
        (f"max_nodes: {NINES}", "rules[0].max_nodes: expected a whole number of at most 18 digits"),
        (f"stall: {{windows: {NINES}}}", "rules[0].stall.windows: expected a whole number of at most 18 digits"),
        ("stall: {windows: 100000000}", "rules[0].stall.windows: together are more than 10 years"),
        ("stall: {window: 5m, windows: 289}", "rules[0].stall.windows: together are more than 24 h, which no machine"),
        ("stall: {window: 1s, windows: 1001}", "rules[0].stall.windows: are more than 1000; make them longer"),
        ("stall: {window: 0.9s}", "rules[0].stall.window: is less than a second, and governors do not look so often"),
        (
            "min_gpu_utilization: {value: 80%, over: 25h}",
            "rules[0].min_gpu_utilization.over: is more than 24 h, which no machine remembers",
        ),
        ("min_gpu_utilization: {value: 80%, over: 0.5s}", "rules[0].min_gpu_utilization.over: is less than a second"),
        (f"metric: {{name: l, above: {NINES}}}", "rules[0].metric.above: expected a number"),
        (f"budget: {{dollars: {NINES}, period: day}}", "rules[0].budget.dollars: expected a number"),
        ("budget: {dollars: 1.0e+12, period: day}", "rules[0].budget.dollars: must be at most 1000000000"),
        ("budget: {dollars: 5, period: day, by: 'a b=c'}", "rules[0].budget.by: expected the name of a tag, without"),
        ("budget: {dollars: 5, period: day, warn_at: 1}", "rules[0].budget.warn_at: 1 may be 1% or 100%; write which"),
        ("min_gpu_utilization: {value: 1}", "rules[0].min_gpu_utilization.value: 1 may be 1% or 100%"),
    ],
)
def test_numbers_that_cannot_be_meant(rule: str, told: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_policy(f"rules: [{{{rule}}}]".encode(), "p.yaml")
    assert str(error.value).startswith(f"p.yaml:1: {told}"), error.value
    assert len(str(error.value)) < 200 and "\n" not in str(error.value)


@pytest.mark.parametrize("rule", ["stall: {window: 1h, windows: 30}", "min_gpu_utilization: {value: 80%, over: 48h}"])
def test_spans_that_nobody_remembers_are_read_where_they_were_set_before(rule: str) -> None:
    """A policy that cannot be read stops all launches."""
    assert parse_policy(f"rules: [{{{rule}}}]".encode(), "policy/3", version=3).rules


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("max_nodes: 1, for: {team: null}", "for.team"),
        ("max_nodes: 1, for: null", "for"),
        ("max_nodes: 1, for: ", "for"),
        ("max_nodes: 1, then: ~", "then"),
        ("tags: {project: null}", "tags.project"),
        ("max_cost: null, max_nodes: 1", "max_cost"),
        ("budget: {dollars: 5, period: day, by: null}", "budget.by"),
    ],
)
def test_a_null_makes_no_rule_wider(rule: str, field: str) -> None:
    with pytest.raises(SpecError, match=f"p.yaml:1: rules.0..{field}: says nothing; leave it out, or write"):
        parse_policy(f"rules: [{{{rule}}}]".encode(), "p.yaml")


def test_a_null_that_means_something_and_an_empty_list() -> None:
    (rule,) = parse_policy(b"rules: [{spot: {on_demand_after: null}}]\nnotify:\n", "p.yaml").rules
    assert rule.spot is not None and rule.spot.on_demand_after is None
    (rule,) = parse_policy(b"rules: [{min_gpu_utilization: {value: 100%}}]", "p.yaml").rules
    assert rule.min_gpu_utilization is not None and rule.min_gpu_utilization.value == 1.0
