"""From layers to a spec: what is accepted, and what a mistake is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.jobfile import Job, assignments, base_folder, document, parse_job, read_layer, spec_layer
from stoker.jobfile.field_table import fields_of, walk
from stoker.jobfile.reference import EXAMPLE
from stoker.model import codec
from stoker.model.errors import SpecError
from stoker.model.resources import Ec2Resources, GceResources, Gpus, LocalResources, Resources, SagemakerResources
from stoker.model.spec import Checkpoints, Container, Environment, Input, Limits, Logs, PackageIndex, Retry, Spec


def parse(text: str, *sets: str) -> Spec:
    layers = [read_layer(text, "stoker.yaml")]
    return parse_job([*layers, assignments(sets)] if sets else layers, folder=Path("/somewhere/project"))


def problem(text: str, *sets: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text, *sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_field_at_once() -> None:
    assert parse(EXAMPLE) == Spec(
        name="gpt-small",
        run="torchrun train.py\n",
        code=".",
        params={"lr": 3e-4, "layers": 12},
        params_written={"lr": "3e-4"},
        env={"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "4"},
        setup="python prepare.py\n",
        secrets={"WANDB_API_KEY": "env", "HF_TOKEN": "aws-sm:hf/token"},
        nodes=2,
        resources=Resources(
            provider="ec2",
            gpus=Gpus("A100", 8),
            machine=("p4d.24xlarge", "p4de.24xlarge"),
            cpus=8,
            memory_bytes=64 * 10**9,
            spot="prefer",
            region="us-east-1",
            zones=(),
            max_price=12.0,
            disk_bytes=200 * 10**9,
            image="dlami/pytorch",
            ec2=Ec2Resources(
                profile="trainer",
                subnet=("subnet-0a1b2c",),
                security_groups=("sg-0d4e5f",),
                key="laptop",
                public_ip=False,
                placement_group="close",
                reservation="cr-0123",
                efa=True,
                overrides={"Monitoring": {"Enabled": True}},
            ),
            gce=GceResources(
                project="vision",
                service_account="trainer@vision.example",
                scopes=("storage-rw",),
                network="default",
                gpu_networks=("subnet:gpu-1", "subnet:gpu-2"),
                public_ip=False,
                placement_policy="close",
                reservation="block-7",
                overrides={"labels": {"team": "vision"}},
            ),
            sagemaker=SagemakerResources(
                role="trainer",
                subnets=("subnet-0a1b2c",),
                security_groups=("sg-0d4e5f",),
                keep_alive_s=1800.0,
                kms_key="1234abcd-12ab-34cd-56ef-1234567890ab",
                encrypt_traffic=True,
                overrides={"EnableInterContainerTrafficEncryption": True},
            ),
            local=LocalResources(capacity=4, reclaim_mean_s=30.0, grace_s=5.0, seed=7, price=1.2, spot_price=0.4),
        ),
        environment=Environment(
            python="3.10",
            requirements="requirements.txt",
            conda="environment.yml",
            apt=("libgl1",),
            system_packages=True,
            wheels="pack",
            index=PackageIndex(url="https://packages.example/simple", secret="aws-sm:index"),
            apt_mirror=PackageIndex(url="https://mirror.example/debian", secret="gcp-sm:mirror"),
            conda_channel=PackageIndex(url="https://jane@packages.example/conda", secret="env:CONDA_PASSWORD"),
            container=Container(
                image="registry.example/trainer",
                run={"shm_size": "16g", "cap_add": ["SYS_ADMIN"]},
                entrypoint=True,
                secret="aws-sm:registry",
            ),
            contract="sagemaker",
        ),
        inputs={
            "train": Input("s3://bucket/dataset"),
            "tokens": Input("s3://bucket/tokens", shard=True),
            "val": Input("s3://bucket/val", "mount"),
            "cfg": Input("./configs"),
        },
        checkpoints=Checkpoints(),
        resume_from="gpt-small-7f3k:step-900",
        outputs="artifacts",
        metrics={"loss": "loss=([0-9.eE+-]+)"},
        limits=Limits(max_runtime_s=86400.0, max_cost=200.0, max_wait_s=21600.0, stall_s=900.0),
        retry=Retry(spot_again_s=43200.0, spot_wait_s=7200.0, hold_on_failure_s=600.0),
        logs=Logs(cloudwatch="/stoker/jobs", cloud_logging="stoker"),
        notify=("sns:arn:aws:sns:us-east-1:123456789012:training", "aws-sm:team/slack"),
        tags={"project": "vision", "user": "jane"},
    )


def test_the_example_leaves_no_field_out() -> None:
    import yaml

    tree = yaml.safe_load(EXAMPLE)
    for dotted, _ in walk():
        part = tree
        for key in dotted.split("."):
            assert key in part, dotted
            part = part[key]


def test_the_smallest() -> None:
    spec = parse("run: python train.py\n")
    assert spec == Spec(name="train", run="python train.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: x\nresources:\n  gpu: A100\n", "stoker.yaml:3: resources.gpu: unknown field; did you mean gpus?"),
        ("run: x\ngpus: A100\n", "stoker.yaml:2: gpus: unknown field; did you mean resources.gpus?"),
        ("command: x\n", "stoker.yaml:1: command: unknown field; did you mean run?"),
        (
            "run: x\nresources: {tags: {team: vision}}\n",
            "stoker.yaml:2: resources.tags: unknown field; `tags` stands at the top level of the job file",
        ),
        (
            "run: x\nresources:\n  provider: gce\n  gce: {labels: {team: vision}}\n",
            "stoker.yaml:4: resources.gce.labels: unknown field; `tags` stands at the top level of the job file",
        ),
        (
            "run: x\nlimits: {max_runtime_s: 3}\n",
            "stoker.yaml:2: limits.max_runtime_s: unknown field; did you mean max",
        ),
        ("run: x\nretry: {zzz: 3}\n", "stoker.yaml:2: retry.zzz: unknown field; there are: user_errors, on_demand"),
        ("run: x\nparams_written: {a: b}\n", "stoker.yaml:2: params_written: unknown field"),
        ("run: x\ninputs: {a: {source: b}}\n", "stoker.yaml:2: inputs.a.source: unknown field"),
        ("name: a\n", "stoker.yaml:1: run: is missing; say what to run, such as `run: python train.py`"),
        ("run:\n", "stoker.yaml:1: run: is missing"),
        ("run: '  '\n", "stoker.yaml:1: run: is empty; say what to run"),
        ("run: |\n  # nothing\n", "stoker.yaml:1: run: is empty"),
        ("run: []\n", "stoker.yaml:1: run: is empty"),
        ("run: ['']\n", "stoker.yaml:1: run: is empty"),
        ("run: 5\n", "stoker.yaml:1: run: expected text for bash, or a list of words, found the number 5"),
        ("run: [python, true]\n", "stoker.yaml:1: run[1]: expected text, found true; put it in quotes"),
        ("run: x\nnodes: two\n", "stoker.yaml:2: nodes: expected a whole number, found text 'two'"),
        (
            "run: x\nnodes: '2'\n",
            "stoker.yaml:2: nodes: expected a whole number, found text '2'; write it without quotes",
        ),
        ("run: x\nnodes: 1.5\n", "stoker.yaml:2: nodes: expected a whole number, found the number 1.5"),
        ("run: x\nnodes: true\n", "stoker.yaml:2: nodes: expected a whole number, found true"),
        ("run: x\nnodes: 0\n", "stoker.yaml:2: nodes: must be at least 1, found 0"),
        ("run: x\nname: My Job\n", "stoker.yaml:2: name: expected a name of lower-case letters"),
        (f"run: x\nname: {'a' * 41}\n", "stoker.yaml:2: name: expected a name of lower-case letters"),
        ("run: x\nname: 1a\n", "stoker.yaml:2: name: expected a name"),
        ("run: x\ncheckpoints: {keep: 0}\n", "stoker.yaml:2: checkpoints.keep: must be at least 1, found 0"),
        ("run: x\ncheckpoints: {dir: ../up}\n", "stoker.yaml:2: checkpoints.dir: expected a folder below the code"),
        ("run: x\ncheckpoints: {dir: a/../../b}\n", "stoker.yaml:2: checkpoints.dir: expected a folder"),
        ("run: x\ncheckpoints: {dir: []}\n", "stoker.yaml:2: checkpoints.dir: is an empty list"),
        ("run: x\ncheckpoints: {dir: ['!a']}\n", "stoker.yaml:2: checkpoints.dir: only takes back"),
        ("run: x\ncheckpoints: {dir: [a, /b/c]}\n", "stoker.yaml:2: checkpoints.dir: mixes absolute and relative"),
        ("run: x\ncheckpoints: {dir: ~/saves}\n", "stoker.yaml:2: checkpoints.dir: ~/saves: `~` means another home"),
        ("run: x\ncheckpoints: {dir: $HOME/ck}\n", "stoker.yaml:2: checkpoints.dir: $HOME/ck: Stoker does not replace"),
        ("run: x\noutputs: [a, '!a/${USER}']\n", "stoker.yaml:2: outputs: !a/${USER}: Stoker does not replace ${USER}"),
        ("run: x\noutputs: run-$USER/*.pt\n", "stoker.yaml:2: outputs: run-$USER/*.pt: Stoker does not replace $USER"),
        ("run: x\ncode: $HOME\n", "stoker.yaml:2: code: $HOME: Stoker does not replace $HOME in a path; write"),
        ("run: x\ninputs: {d: $DATA/x}\n", "stoker.yaml:2: inputs.d: $DATA/x: Stoker does not replace $DATA"),
        ("run: x\ninputs: {d: {from: 's3://b/$U'}}\n", "stoker.yaml:2: inputs.d: s3://b/$U: Stoker does not replace"),
        ("run: x\nresume_from: $OLD/ck\n", "stoker.yaml:2: resume_from: $OLD/ck: Stoker does not replace $OLD"),
        ("run: x\nenvironment: {requirements: $R}\n", "stoker.yaml:2: environment.requirements: $R: Stoker does not"),
        ("run: x\nenvironment: {conda: $R/e.yml}\n", "stoker.yaml:2: environment.conda: $R/e.yml: Stoker does not"),
        ("run: x\nenvironment: {python: $P/bin/python}\n", "stoker.yaml:2: environment.python: $P/bin/python: Stoker"),
        (
            "run: x\nenvironment: {container: {image: a, run: {volume: '$HOME/a:/a'}}}\n",
            "stoker.yaml:2: environment.container.run.volume: $HOME/a: Stoker does not replace $HOME",
        ),
        ("run: x\noutputs: /\n", "stoker.yaml:2: outputs: /: holds what is not the job's"),
        ("run: x\noutputs: [a, ../b]\n", "stoker.yaml:2: outputs: expected a folder below the code"),
        ("run: x\noutputs: /home/*\n", "stoker.yaml:2: outputs: /home/*: holds what is not the job's"),
        ("run: x\ncheckpoints: {dir: /home/jane}\n", "stoker.yaml:2: checkpoints.dir: /home/jane: holds what is not"),
        ("run: x\ncheckpoints: {dir: /etc/x}\n", "stoker.yaml:2: checkpoints.dir: /etc/x: belongs to the system"),
        ("run: x\ncheckpoints: {dir: .}\noutputs: .\n", "stoker.yaml:3: outputs: . and checkpoints.dir (.) must be"),
        (
            "run: x\nenvironment: {contract: sagemaker}\noutputs: '*.png'\n",
            "stoker.yaml:3: outputs: with contract: sagemaker this is one folder; `.`, patterns and lists cannot be",
        ),
        (
            "run: x\noutputs: checkpoints\n",
            "stoker.yaml:2: outputs: checkpoints and checkpoints.dir (checkpoints) must",
        ),
        ("run: x\noutputs: ./checkpoints/out/\n", "stoker.yaml:2: outputs: ./checkpoints/out/ and checkpoints.dir"),
        ("run: x\ncheckpoints: {dir: a/b}\noutputs: a\n", "stoker.yaml:3: outputs: a and checkpoints.dir (a/b)"),
        ("run: x\nlimits: {max_runtime: 0}\n", "stoker.yaml:2: limits.max_runtime: must be more than 0, found 0"),
        ("run: x\nlimits: {max_runtime: soon}\n", "stoker.yaml:2: limits.max_runtime: expected a duration such as 90s"),
        ("run: x\nlimits: {max_runtime: 1:30}\n", "stoker.yaml:2: limits.max_runtime: expected a duration"),
        ("run: x\nlimits: {max_cost: -1}\n", "stoker.yaml:2: limits.max_cost: must be more than 0, found -1"),
        ("run: x\nlimits: {max_cost: $5}\n", "stoker.yaml:2: limits.max_cost: expected a number, found text '$5'"),
        ("run: x\nlimits: 24h\n", "stoker.yaml:2: limits: expected fields (max_runtime, max_cost, max_wait, stall, …)"),
        ("run: x\nresources: {disk: 200}\n", "stoker.yaml:2: resources.disk: expected a size with its unit, such as"),
        ("run: x\nresources: {memory: 0GB}\n", "stoker.yaml:2: resources.memory: must be more than 0, found 0GB"),
        ("run: x\nresources: {gpus: [A100]}\n", "stoker.yaml:2: resources.gpus: expected accelerators such as A100:8"),
        ("run: x\nresources: {cpus: many}\n", "stoker.yaml:2: resources.cpus: expected a whole number such as 8 or 8+"),
        (
            "run: x\nresources: {spot: yes}\n",
            "stoker.yaml:2: resources.spot: expected true, false or prefer, found text",
        ),
        ("run: x\nresources: {spot: only}\n", "stoker.yaml:2: resources.spot: expected true, false or prefer"),
        ("run: x\nresources: {region: 1}\n", "stoker.yaml:2: resources.region: expected text, found the number 1; put"),
        ("run: x\nresources: {region: ' '}\n", "stoker.yaml:2: resources.region: is empty"),
        (
            "run: x\nresources: {ec2: {efa: on}}\n",
            "stoker.yaml:2: resources.ec2.efa: expected true or false, found text 'on'; write true",
        ),
        ("run: x\nresources: {machine: [a, 3]}\n", "stoker.yaml:2: resources.machine[1]: expected text"),
        ("run: x\nenv: {A: true}\n", 'stoker.yaml:2: env.A: expected text, found true; put it in quotes: "true"'),
        ("run: x\nenv: {A: }\n", "stoker.yaml:2: env.A: expected text, found nothing"),
        ("run: x\nenv: {A: [1]}\n", "stoker.yaml:2: env.A: expected text, found a list"),
        ("run: x\nenv: {1A: b}\n", "stoker.yaml:2: env.1A: a name here is letters, digits and `_`"),
        ("run: x\nenv: [A=1]\n", "stoker.yaml:2: env: expected a mapping of names to values, found a list"),
        ("run: x\ntags: {a: no, b: false}\n", "stoker.yaml:2: tags.b: expected text, found false"),
        ("run: x\nparams: {a: [1]}\n", "stoker.yaml:2: params.a: expected a single value, found a list"),
        ("run: x\nparams: {'a b': 1}\n", "stoker.yaml:2: params.a b: a name here is"),
        ("run: x\nparams: {--a: 1}\n", "stoker.yaml:2: params.--a: a name here is"),
        ("run: x\nsecrets: {A: env}\nenv: {A: b}\n", "stoker.yaml:2: secrets.A: is in env as well; keep one of them"),
        ("run: x\nsecrets: {A: 'aws-sm:'}\n", "stoker.yaml:2: secrets.A: expected env, env:NAME, aws-sm:NAME"),
        ("run: x\ninputs: {a: 5}\n", "stoker.yaml:2: inputs.a: expected a URL or path, or {from: …, mode: …}, found"),
        ("run: x\ninputs: {a: {mode: copy}}\n", "stoker.yaml:2: inputs.a.from: is missing"),
        (
            "run: x\ninputs: {a: {from: b, mode: fast}}\n",
            "stoker.yaml:2: inputs.a.mode: expected copy or mount or stream",
        ),
        ("run: x\ninputs: {a-b: x, a_b: y}\n", "stoker.yaml:2: inputs.a_b: and a-b would both be STOKER_INPUT_A_B"),
        (
            "run: x\ninputs:\n  a: {from: s3://b/c, mode: mount, shard: true}\n",
            "stoker.yaml:3: inputs.a.shard: shares out files that are copied; with mode: mount, leave it out",
        ),
        ("run: x\nmetrics: {loss: '('}\n", "stoker.yaml:2: metrics.loss: not a regular expression"),
        ("run: x\nmetrics: {loss: 'loss=.*'}\n", "stoker.yaml:2: metrics.loss: expected exactly one group"),
        ("run: x\nmetrics: {loss: '(a)(b)'}\n", "stoker.yaml:2: metrics.loss: expected exactly one group"),
        ("run: x\nenvironment: {contract: other}\n", "stoker.yaml:2: environment.contract: expected sagemaker, found"),
        (
            "run: x\nenvironment: {container: {engine: docker}}\n",
            "stoker.yaml:2: environment.container.image: is missing",
        ),
        ("run: x | tee log\nparams: {lr: 1}\n", "stoker.yaml:1: run: params cannot be appended after `x | tee log`"),
    ],
)
def test_a_mistake_is_one_line_with_place_field_and_advice(text: str, message: str) -> None:
    assert problem(text).startswith(message)


def test_names_of_objects_may_have_a_dollar_sign() -> None:
    spec = parse("run: x\ninputs: {d: 's3://b/part_$folder$/$'}\ncode: a$\n")
    assert spec.inputs["d"].source == "s3://b/part_$folder$/$" and spec.code == "a$"


def test_the_value_of_a_would_be_secret_is_never_repeated() -> None:
    message = problem("run: x\nsecrets: {KEY: hunter2}\n")
    assert "hunter2" not in message
    assert message.startswith("stoker.yaml:2: secrets.KEY: expected env, env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:")


@pytest.mark.parametrize(
    ("said", "taken_back", "left"),
    [
        ("environment: {container: {image: i, run: {ulimits: {memlock: -1}, ipc: host}}}", "ulimits", {"ipc": "host"}),
        (
            "environment: {container: {image: i, run: {ulimits: {memlock: -1, stack: 9}}}}",
            "ulimits.memlock",
            {"ulimits": {"stack": 9}},
        ),
    ],
)
def test_null_takes_a_flag_of_the_container_back(said: str, taken_back: str, left: dict[str, object]) -> None:
    container = parse(f"run: x\n{said}\n", f"environment.container.run.{taken_back}=null").environment.container
    assert container is not None and container.run == left
    assert "run.ulimits: is empty" in problem("run: x\nenvironment: {container: {image: i, run: {ulimits: }}}\n")


def test_null_takes_a_single_name_back() -> None:
    text = "run: x\nenv: {A: a, B: b}\nsecrets: {C: env}\ntags: {d: e}\ninputs: {f: g}\nparams: {h: 1}\n"
    spec = parse(text, "env.A=null", "secrets.C=null", "tags.d=null", "inputs.f=null", "params.h=null")
    assert (spec.env, spec.secrets, spec.tags, spec.inputs) == ({"B": "b"}, {}, {}, {})
    # Null is something to say for a parameter.
    assert spec.params == {"h": None}


@pytest.mark.parametrize("section", ["env: {%s: x}", "secrets: {%s: env}"])
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("PATH", "export PATH=FOLDER:$PATH"),
        ("STOKER_JOB", "are Stoker's own"),
        ("STOKER_ANYTHING", "are Stoker's own"),
        ("NODES", "Stoker sets it for each attempt"),
        ("MASTER_ADDR", "Stoker sets it for each attempt"),
        ("PET_NNODES", "Stoker sets it for each attempt"),
        ("SM_MODEL_DIR", "`contract: sagemaker` sets it"),
        ("TRAINING_JOB_NAME", "`contract: sagemaker` sets it"),
    ],
)
def test_variables_of_the_contract_are_not_the_jobs_to_set(section: str, name: str, word: str) -> None:
    message = problem(f"run: x\nenvironment: {{contract: sagemaker}}\n{section % name}\n")
    assert message.startswith(f"stoker.yaml:3: {section.partition(':')[0]}.{name}: ")
    assert word in message


def test_variables_that_are_the_jobs_to_set() -> None:
    text = "run: x\nenv: {MASTER_PORT: 29600, PET_NPROC_PER_NODE: 2, PYTHONPATH: src, LD_LIBRARY_PATH: /x, SM_OWN: y}\n"
    assert len(parse(text).env) == 5
    assert problem("run: x\nsecrets: {MASTER_PORT: env}\n").startswith("stoker.yaml:2: secrets.MASTER_PORT: Stoker")
    assert problem("run: x\nsecrets: {PYTHONPATH: env}\n").startswith("stoker.yaml:2: secrets.PYTHONPATH: would")


def test_mistakes_on_the_command_line_name_the_flag() -> None:
    assert problem("run: x\n", "nodes=zero").startswith("--set: nodes: expected a whole number, found text 'zero'")
    assert problem("run: x\n", "resources.gpu=1").startswith("--set: resources.gpu: unknown field")


def test_env_takes_numbers_as_they_were_written() -> None:
    spec = parse("run: x\nenv: {A: 1.10, B: 007, C: 3e-4, D: 'true', E: yes, F: ''}\ntags: {account: 0123}\n")
    assert spec.env == {"A": "1.10", "B": "007", "C": "3e-4", "D": "true", "E": "yes", "F": ""}
    assert spec.tags == {"account": "0123"}


def test_params_keep_their_types_and_how_numbers_were_written() -> None:
    spec = parse("run: x\nparams: {a: 3e-4, b: 12, c: 1.10, d: '1.10', e: true, f: null, g: yes, h: 0.5}\n")
    assert spec.params == {"a": 3e-4, "b": 12, "c": 1.1, "d": "1.10", "e": True, "f": None, "g": "yes", "h": 0.5}
    assert spec.params_written == {"a": "3e-4", "c": "1.10"}


def test_spot_in_all_its_forms() -> None:
    assert parse("run: x\nresources: {spot: true}\n").resources.spot == "only"
    assert parse("run: x\nresources: {spot: false}\n").resources.spot == "never"
    assert parse("run: x\nresources: {spot: prefer}\n").resources.spot == "prefer"


def test_nulls() -> None:
    assert parse("run: x\nretry: {on_demand_after: null}\n").retry.on_demand_after is None
    assert parse("run: x\nretry: {on_demand_after: }\n").retry.on_demand_after == 3
    assert parse("run: x\nnodes: null\n").nodes == 1
    assert parse("run: x\nresources:\nlimits:\n").resources == Resources()


def test_one_named_group_may_stand_among_others() -> None:
    assert parse("run: x\nmetrics: {a: '(x|y)=(?P<value>.*)'}\n").metrics


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("python train.py", "train"),
        ("torchrun --nproc 8 src/Train_GPT.py --lr 3", "train-gpt"),
        ("python -m torch.distributed.run train.py", "train"),
        ("python -m my_pkg.fine_tune", "fine-tune"),
        ("./run.sh", "run"),
        ("make all", "project"),
        ("python 01_prep.py", "job-01-prep"),
        (f"python {'a' * 60}.py", "a" * 40),
    ],
)
def test_default_names(run: str, name: str) -> None:
    assert parse(f"run: {run}\n").name == name


def test_a_list_is_named_after_its_script_too() -> None:
    assert parse("run: [python, train.py]\n").name == "train"


def test_shared_layers_may_hold_settings_for_other_providers() -> None:
    user = read_layer("resources: {ec2: {subnet: s}, gce: {project: p}, local: {seed: 3}}\n", "user", shared=True)
    spec = parse_job([user, read_layer("run: x\n", "stoker.yaml")])
    assert spec.resources == Resources(local=LocalResources(seed=3))
    job = read_layer("run: x\nresources: {provider: ec2}\n", "stoker.yaml")
    assert parse_job([user, job]).resources == Resources(provider="ec2", ec2=Ec2Resources(subnet=("s",)))
    own = read_layer("run: x\nresources: {ec2: {key: k}}\n", "stoker.yaml")
    assert parse_job([user, own]).resources.ec2 == Ec2Resources(key="k")


def test_later_layers_win() -> None:
    user = read_layer("resources: {region: a, max_price: 1}\ntags: {a: x, b: y}\n", "user", shared=True)
    job = read_layer("run: x\nresources: {region: b}\ntags: {b: z}\n", "stoker.yaml")
    spec = parse_job([user, job, assignments(["resources.region=c"])])
    assert (spec.resources.region, spec.resources.max_price, spec.tags) == ("c", 1.0, {"a": "x", "b": "z"})


def test_relative_paths_are_relative_to_the_job_file() -> None:
    job = read_layer("run: x\n", "a/stoker.yaml", folder=Path("/a"))
    assert base_folder([job, assignments(["nodes=1"])]) == Path("/a")
    assert base_folder([]) == Path.cwd()


# ── Python, and back ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_from_python_is_the_job_of_the_file() -> None:
    job = Job(
        name="a",
        run=["python", "train.py"],
        params={"lr": 3e-4},
        env={"N": 3, "X": 0.5},
        resources={"gpus": "A100:8", "spot": True},
        limits={"max_runtime": "24h"},
        inputs={"d": {"from": "s3://b", "mode": "stream"}},
    )
    assert job.spec() == Spec(
        name="a",
        run=("python", "train.py"),
        params={"lr": 3e-4},
        env={"N": "3", "X": "0.5"},
        resources=Resources(gpus=Gpus("A100", 8), spot="only"),
        limits=Limits(max_runtime_s=86400.0),
        inputs={"d": Input("s3://b", "stream")},
    )


def test_job_has_every_field_of_the_file_and_no_other() -> None:
    assert {field.name for field in dataclasses.fields(Job)} == set(fields_of(Spec))


def test_mistakes_in_python_are_told_in_the_same_words() -> None:
    with pytest.raises(SpecError, match=r"^Job: resources\.gpu: unknown field; did you mean gpus\?$"):
        Job(run="x", resources={"gpu": 1}).spec()
    with pytest.raises(SpecError, match=r"^Job: environment\.python: expected text, found the number 3\.1; put it"):
        Job(run="x", environment={"python": 3.10}).spec()
    with pytest.raises(SpecError, match=r"^Job: run: is missing"):
        Job().spec()


def test_a_job_may_stand_on_other_layers() -> None:
    below = read_layer("tags: {a: b}\nnodes: 3\n", "user", shared=True)
    spec = Job(run="x", nodes=2).spec([below])
    assert (spec.nodes, spec.tags) == (2, {"a": "b"})


def test_every_field_survives_the_store_and_being_written_out_again() -> None:
    spec = parse(EXAMPLE)
    assert codec.loads(Spec, codec.dumps(spec)) == spec
    assert parse_job([spec_layer(spec, "a job")]) == spec
    assert document(spec)["limits"] == {"max_runtime": "1d", "max_cost": 200.0, "max_wait": "6h", "stall": "15m"}


_words = st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cc",)), min_size=1).filter(
    lambda text: bool(text.strip())
)
_jobs = st.fixed_dictionaries(
    {"run": st.one_of(st.lists(_words, min_size=1), st.just("python train.py"))},
    optional={
        "name": st.from_regex(r"[a-z][a-z0-9-]{0,39}", fullmatch=True),
        "params": st.dictionaries(
            st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,9}", fullmatch=True),
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _words,
        ),
        "env": st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), _words),
        "nodes": st.integers(1, 100),
        "notify": st.lists(
            st.from_regex(r"(env:[A-Z]{1,5}|json://[a-z]{1,9})", fullmatch=True), unique=True, max_size=10
        ),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "spot": st.sampled_from([True, False, "prefer"]),
                "cpus": st.integers(1, 500),
                "memory": st.integers(1, 2**50).map(lambda size: f"{size}B"),
                "gpus": st.sampled_from(["A100:8", "H100", 4]),
                "zones": st.lists(st.sampled_from(["a", "b"])),
                "local": st.fixed_dictionaries(
                    {}, optional={"seed": st.integers(-(10**18), 10**18), "grace": st.floats(0, 1e6)}
                ),
            },
        ),
        "limits": st.fixed_dictionaries({}, optional={"max_runtime": st.floats(0.001, 3e8), "stall": st.just("1h30m")}),
        "retry": st.fixed_dictionaries({}, optional={"on_demand_after": st.none() | st.integers(1, 9)}),
    },
)


@settings(deadline=None)
@given(_jobs)
def test_any_spec_survives_the_store(job: dict[str, object]) -> None:
    spec = Job(**job).spec()  # type: ignore[arg-type]
    assert codec.loads(Spec, codec.dumps(spec)) == spec


@settings(deadline=None)
@given(_jobs)
def test_any_spec_can_be_written_out_again(job: dict[str, object]) -> None:
    spec = Job(**job).spec()  # type: ignore[arg-type]
    assert parse_job([spec_layer(spec, "a job")]) == spec


@settings(deadline=None)
@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse(text)
    except SpecError as error:
        assert "\n" not in str(error)


def test_more_nodes_than_this_computer_may_have() -> None:
    job = Job(run="x", nodes=5, resources={"local": {"capacity": 2}})
    with pytest.raises(SpecError, match=r"resources\.local\.capacity: is 2, so 5 nodes never fit"):
        job.spec()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("checkpoints: {grace: 1000000000000s}", "checkpoints.grace: must be at most 10 years, found 1000000000000s"),
        ("resources: {local: {price: 1.7e308}}", "resources.local.price: must be at most 1000000, found 1.7e308"),
        ("resources: {local: {spot_price: 1000001}}", "resources.local.spot_price: must be at most 1000000"),
        ("resources: {max_price: 1e7}", "resources.max_price: must be at most 1000000"),
        (f"limits: {{max_runtime: {'9' * 400}h}}", "limits.max_runtime: must be at most 10 years"),
        (f"limits: {{max_cost: {'9' * 400}}}", "limits.max_cost: expected a number"),
        (f"nodes: {'9' * 400}", "nodes: expected a whole number of at most 18 digits"),
        ("nodes: 1000000", "nodes: must be at most 10000, found 1000000"),
        (f"resources: {{disk: {'9' * 400}GB}}", "resources.disk: must be at most 1024PiB"),
    ],
)
def test_numbers_beyond_all_bounds_are_one_line(text: str, told: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_job([read_layer(f"run: x\n{text}", "job.yaml")])
    assert str(error.value).startswith(f"job.yaml:2: {told}"), error.value
    assert len(str(error.value)) < 200
