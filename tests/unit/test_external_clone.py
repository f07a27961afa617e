"""A clone is asked for with everything that its original has."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape
from botocore.validate import ParamValidator
from external_world import asked

from stoker.external_jobs.clone_request import (
    COPIED_FIELDS,
    Lineage,
    base_name,
    build_request,
    clone_name,
    has_tag_room,
    parse_lineage,
)

GOLDEN = Path(__file__).parent / "golden" / "sagemaker_clone.json"
MODEL = botocore.session.get_session().get_service_model("sagemaker")
ASKED = MODEL.operation_model("CreateTrainingJob").input_shape
TOLD = MODEL.operation_model("DescribeTrainingJob").output_shape
# Of a description, what is about that one job and nothing to ask for.
OWN = {
    *("TrainingJobName", "TrainingJobArn", "TuningJobArn", "LabelingJobArn", "AutoMLJobArn", "ModelArtifacts"),
    *("TrainingJobStatus", "SecondaryStatus", "FailureReason", "WarmPoolStatus", "CreationTime"),
    *("TrainingStartTime", "TrainingEndTime", "LastModifiedTime", "SecondaryStatusTransitions"),
    *("FinalMetricDataList", "TrainingTimeInSeconds", "BillableTimeInSeconds", "BillableTokenCount"),
    *("DebugRuleEvaluationStatuses", "ProfilerRuleEvaluationStatuses", "ProfilingStatus", "MlflowDetails"),
    *("ProgressInfo", "OutputModelPackageArn"),
}


# Fields of a request that no description has: a clone is without them.
UNDESCRIBED = ("SessionChainingConfig",)


def test_every_field_that_aws_has_is_kept_or_known_to_be_untold() -> None:
    """A field that a newer botocore brings fails here, and someone decides about it."""
    assert set(ASKED.members) == {"TrainingJobName", "Tags", *COPIED_FIELDS, *UNDESCRIBED}
    assert set(TOLD.members) == {*COPIED_FIELDS, *OWN}
    assert not set(UNDESCRIBED) & set(TOLD.members)
    for name in COPIED_FIELDS:
        assert ASKED.members[name].name == TOLD.members[name].name


def test_what_aws_calls_read_only_is_left_out() -> None:
    found = {path for name in COPIED_FIELDS for path in read_only(ASKED.members[name], name)}
    assert found == {"ResourceConfig.SelectedInstanceType", "ResourceConfig.SelectedInstanceCount"}


def read_only(shape: Shape, path: str, above: tuple[str, ...] = ()) -> list[str]:
    if shape.name in above:
        return []
    inside = (*above, shape.name)
    if isinstance(shape, StructureShape):
        found = []
        for name, part in shape.members.items():
            if re.search(r"isn't accepted", part.documentation or ""):
                found.append(f"{path}.{name}")
            found += read_only(part, f"{path}.{name}", inside)
        return found
    if isinstance(shape, ListShape):
        return read_only(shape.member, path, inside)
    return read_only(shape.value, path, inside) if isinstance(shape, MapShape) else []


def filled(shape: Shape, above: tuple[str, ...] = ()) -> Any:
    """Something of every field below this shape."""
    if isinstance(shape, StructureShape):
        parts = {name: filled(part, (*above, shape.name)) for name, part in shape.members.items()}
        return {} if shape.name in above else parts
    if isinstance(shape, ListShape):
        return [filled(shape.member, above)]
    if isinstance(shape, MapShape):
        return {"key": filled(shape.value, above)}
    if getattr(shape, "enum", None):
        return shape.enum[0]
    least = shape.metadata.get("min", 1)
    by_type: dict[str, Any] = {
        "string": f"a {shape.name}".ljust(least, "x")[: shape.metadata.get("max", 2000)],
        "integer": max(1, least),
        "long": max(1, least),
        "float": 0.5,
        "double": 0.5,
        "boolean": True,
        "timestamp": datetime(2026, 11, 2, tzinfo=timezone.utc),
    }
    return by_type[shape.type_name]


def described() -> dict[str, Any]:
    """A description in which nothing is missing."""
    told = filled(TOLD)
    told["TrainingJobName"] = "bert"
    told["FailureReason"] = "InternalServerError"
    return told


TAGS = [
    {"Key": "team", "Value": "nlp"},
    {"Key": "aws:cloudformation:stack", "Value": "x"},
    {"Key": "stoker:origin", "Value": "somebody-else"},
]


def cloned(*, spot: bool = True, **changes: Any) -> dict[str, Any]:
    return build_request({**described(), **changes}, TAGS, name="bert-r2-abc123", origin="bert", number=2, spot=spot)


def test_a_clone_is_asked_for_with_everything_of_the_original() -> None:
    wanted, told = cloned(), described()
    for name in COPIED_FIELDS:
        if name != "ResourceConfig":
            assert wanted[name] == told[name], name
    assert set(told["ResourceConfig"]) - set(wanted["ResourceConfig"]) == {
        "SelectedInstanceType",
        "SelectedInstanceCount",
    }
    assert wanted["TrainingJobName"] == "bert-r2-abc123"
    assert {tag["Key"]: tag["Value"] for tag in wanted["Tags"]} == {
        "team": "nlp",
        "stoker:origin": "bert",
        "stoker:clone-of": "bert",
        "stoker:clone": "2",
    }
    assert ParamValidator().validate(wanted, ASKED).generate_report() == ""


def test_the_whole_request() -> None:
    text = json.dumps(cloned(spot=False), indent=2, sort_keys=True, default=str) + "\n"
    if os.environ.get("STOKER_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == text


def test_without_spot_there_is_no_wait_for_it() -> None:
    wanted = cloned(spot=False)
    assert wanted["EnableManagedSpotTraining"] is False
    assert set(wanted["StoppingCondition"]) == {"MaxRuntimeInSeconds", "MaxPendingTimeInSeconds"}
    # Only the clone's own: what was told stays as it was.
    assert "MaxWaitTimeInSeconds" in cloned()["StoppingCondition"]


def test_what_is_empty_in_a_description_is_not_asked_for() -> None:
    wanted = cloned(
        OutputDataConfig={"KmsKeyId": "", "S3OutputPath": "s3://b/o"},
        HyperParameters={"note": ""},
        Environment={},
        InputDataConfig=[],
        VpcConfig=None,
    )
    assert wanted["OutputDataConfig"] == {"S3OutputPath": "s3://b/o"} and wanted["HyperParameters"] == {"note": ""}
    assert not {"Environment", "InputDataConfig", "VpcConfig"} & set(wanted)


@pytest.mark.parametrize("count", [0, 46, 47, 48, 49])
def test_all_of_its_tags_are_kept_and_those_of_the_clone_take_what_is_left(count: int) -> None:
    many = [{"Key": f"k{number}", "Value": "v"} for number in range(count)]
    wanted = build_request(asked(), [*many, *TAGS[1:]], name="b", origin="a", number=3, spot=True)
    told = {tag["Key"]: tag["Value"] for tag in wanted["Tags"]}
    assert len(wanted["Tags"]) == len(told) == count + (3 if count < 48 else 1) <= 50
    assert [tag for tag in wanted["Tags"] if tag["Key"].startswith("k")] == many
    assert parse_lineage(told) == Lineage("a", "bert", 3) and has_tag_room(told)
    # So its own clone has as much room.
    again = build_request(
        {**asked(), "TrainingJobName": "b"}, wanted["Tags"], name="c", origin="a", number=4, spot=True
    )
    assert parse_lineage({tag["Key"]: tag["Value"] for tag in again["Tags"]}) == Lineage("a", "b", 4)
    assert ParamValidator().validate(wanted, ASKED).generate_report() == ""


def test_with_fifty_tags_there_is_no_room() -> None:
    many = {f"k{number}": "" for number in range(50)}
    assert not has_tag_room(many) and has_tag_room({**dict(list(many.items())[1:]), "stoker:origin": "a", "AWS:x": ""})


@pytest.mark.parametrize("odd", [{}, {"stoker:clone": "x"}, {"stoker:origin": "a/b"}, {"stoker:origin": "//"}])
def test_tags_without_sense_tell_of_no_clone(odd: dict[str, str]) -> None:
    assert parse_lineage(odd).number == 0 and parse_lineage(odd).of == ""


def test_names_are_unique_and_the_same_for_everybody() -> None:
    made = datetime(2026, 11, 2, tzinfo=timezone.utc)
    name = clone_name("bert", made)
    assert name == clone_name("bert", made) and re.fullmatch(r"bert-r1-[0-9a-f]{6}", name)
    others = {clone_name("bert", made.replace(day=3)), clone_name("bert2", made), clone_name("bert", None)}
    assert len(others | {name}) == 4
    again = clone_name(name, made)
    assert re.fullmatch(r"bert-r2-[0-9a-f]{6}", again) and base_name(again) == base_name("bert") == "bert"


@pytest.mark.parametrize("origin", ["a" * 63, f"{'a' * 52}-{'b' * 10}", "x"])
def test_names_fit(origin: str) -> None:
    name = clone_name(clone_name(origin, None), None)
    assert len(name) <= 63 and re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name)
