"""Where a job's folders lie on a node, which of them hold files of others, and which files are checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_world import write

from stoker.agent import job_folders
from stoker.agent.confinement import Confinement
from stoker.agent.output_files import Baseline
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints, Container, Environment, Spec


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = NodePaths(tmp_path / "node")
    found.code.mkdir(parents=True)
    return found


def spec(saves: str | tuple[str, ...] = "checkpoints", outputs: Any = None, **fields: Any) -> Spec:
    return Spec(name="job", run="python train.py", checkpoints=Checkpoints(dir=saves), outputs=outputs, **fields)


SAGEMAKER = Environment(contract="sagemaker")


@pytest.mark.parametrize(
    ("saves", "folder", "shared"),
    [
        ("checkpoints", "checkpoints", False),
        ("deep/saves", "deep/saves", False),
        (".", ".", True),
        ("*.pt", ".", True),
        ("saves/*.pt", "saves", True),
        (("saves/a", "saves/b"), "saves", True),
    ],
)
def test_the_checkpoint_folder_holds_all_that_is_saved(
    paths: NodePaths, saves: str | tuple[str, ...], folder: str, shared: bool
) -> None:
    job = spec(saves)
    assert job_folders.checkpoint_folder(paths, job) == paths.code / folder
    assert job_folders.is_shared(paths, job) is shared
    assert (job_folders.checkpoint_filter(job) is not None) is shared


def test_a_checkpoint_folder_outside_the_node_may_hold_files_of_others(paths: NodePaths, tmp_path: Path) -> None:
    job = spec(str(tmp_path / "mine"))
    assert job_folders.checkpoint_folder(paths, job) == tmp_path / "mine"
    assert job_folders.is_shared(paths, job) and job_folders.checkpoint_filter(job) is None
    write(tmp_path / "mine/old", "theirs")
    baseline = Baseline.take([tmp_path / "mine"])
    write(tmp_path / "mine/new", "1")
    write(tmp_path / "mine/__pycache__/x", "1")
    selection = job_folders.checkpoint_selection(paths, job, baseline)
    assert set(selection.scan(tmp_path / "mine")) == {"new"} and selection.takes("anything")


def test_in_a_folder_of_its_own_everything_is_a_checkpoint(paths: NodePaths) -> None:
    job = spec()
    folder = job_folders.checkpoint_folder(paths, job)
    write(folder / "__pycache__/x", "1")
    write(folder / "old", "1")
    selection = job_folders.checkpoint_selection(paths, job, Baseline.take([folder]))
    assert set(selection.scan(folder)) == {"__pycache__/x", "old"} and selection.confinement is None
    confined = Confinement((paths.root,), lambda _: None)
    assert job_folders.checkpoint_selection(paths, job, Baseline(), confined).confinement is confined
    assert job_folders.checkpoint_selection(paths, spec("*.pt"), Baseline(), confined).confinement is confined


def test_patterns_choose_among_the_files_of_the_folder(paths: NodePaths) -> None:
    job = spec(("*.pt", "!worst.pt"))
    for name in ("a.pt", "worst.pt", "log"):
        write(paths.code / name, "1")
    selection = job_folders.checkpoint_selection(paths, job, Baseline())
    assert set(selection.scan(paths.code)) == {"a.pt"}
    assert [selection.takes(name) for name in ("b.pt", "worst.pt", "log")] == [True, False, False]


def test_output_folders_among_the_checkpoints_are_synced_by_themselves(paths: NodePaths, tmp_path: Path) -> None:
    chosen = job_folders.checkpoint_filter(spec(".", outputs="results"))
    assert chosen is not None
    assert chosen.takes("model") and not chosen.takes("results/plot")
    both = job_folders.checkpoint_filter(spec(".", outputs="."))
    assert both is not None and both.takes("model"), "an output folder that is all of it takes nothing away"
    outside = job_folders.checkpoint_filter(spec(f"{tmp_path}/saves/*.pt", outputs="results"))
    assert outside is not None and outside.takes("a.pt") and not outside.takes("a.txt")


def test_what_has_to_be_made_and_where_files_of_others_may_lie(paths: NodePaths, tmp_path: Path) -> None:
    job = spec((f"{tmp_path}/saves/*.pt",), outputs=(f"{tmp_path}/results", "plots"))
    assert job_folders.written(paths, job) == [tmp_path / "saves", tmp_path / "results"]
    assert job_folders.watched(paths, job) == [paths.code], "the others are not there"
    (tmp_path / "results").mkdir()
    assert job_folders.watched(paths, job) == [paths.code, tmp_path / "results"]
    inside = spec("/opt/ml/saves", outputs="/opt/ml/results", environment=SAGEMAKER)
    assert job_folders.watched(paths, inside) == [paths.code]
    assert all(folder.is_relative_to(paths.root) for folder in job_folders.written(paths, inside))


def test_the_output_folder_is_the_first_that_is_named(paths: NodePaths, tmp_path: Path) -> None:
    assert job_folders.output_folder(paths, spec()) == paths.code / "outputs"
    (paths.code / "outputs").mkdir()
    assert job_folders.output_folder(paths, spec()) == paths.code / "outputs"
    assert job_folders.output_folder(paths, spec(outputs=("*.png", "b", "a"))) == paths.code / "b"
    assert job_folders.output_folder(paths, spec(outputs=str(tmp_path / "x"))) == tmp_path / "x"
    assert job_folders.output_folder(paths, spec(outputs="b", environment=SAGEMAKER)) == paths.root / "artifacts"


def test_only_the_links_of_a_container_are_confined(paths: NodePaths, tmp_path: Path) -> None:
    class Machine:
        contained = True

    node: Any = SimpleNamespace(paths=paths, machine=object(), say=lambda _text: None)
    inside: Any = SimpleNamespace(paths=paths, machine=Machine(), say=lambda _text: None)
    job = spec(str(tmp_path / "mine"), environment=Environment(container=Container(image="image")))
    assert job_folders.confinement(node, spec()) is None
    assert job_folders.confinement(inside, job) is None, "the training runs beside the agent"
    found = job_folders.confinement(node, job)
    assert found is not None and set(found._anchors) >= {paths.root, tmp_path / "mine"}


@pytest.mark.parametrize(
    ("outputs", "inside"),
    [
        ("figures", "/opt/ml/code/figures"),
        ("../model", None),
        ("/opt/ml/output/data", None),
        ("/opt/ml/output/intermediate", None),
        ("/opt/ml/output", "/opt/ml/output"),
        (("figures", "more"), "/opt/ml/code/figures"),
        (None, None),
    ],
)
def test_the_folder_that_outputs_names_in_the_tree_of_the_contract(outputs: Any, inside: str | None) -> None:
    assert job_folders.outputs_inside(spec(outputs=outputs, environment=SAGEMAKER)) == inside


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("/opt/ml", "ml"),
        ("/opt/ml/input/config", "ml/input/config"),
        ("/opt/ml/code/a", "code/a"),
        ("/opt/ml/model", "artifacts/model"),
        ("/opt/ml/models/a", "ml/models/a"),
        ("/opt/ml/output/data/a", "artifacts/data/a"),
        ("/opt/ml/output/intermediate/a", "artifacts/intermediate/a"),
    ],
)
def test_where_a_path_of_the_contract_is_on_the_machine(paths: NodePaths, inside: str, outside: str) -> None:
    assert job_folders.outside(paths, inside) == paths.root / outside


def outputs_of(paths: NodePaths, job: Spec, *names: str) -> tuple[set[str], set[str]]:
    """Of these new files, the declared ones and those beside the code."""
    files = job_folders.output_files(paths, job, Baseline())
    for name in names:
        write(Path(name) if name.startswith("/") else paths.code / name, "1")
    declared = files.declared()
    beside, _ = files.beside(declared)
    return set(declared), set(beside)


def test_several_folders_keep_their_names_and_one_does_not(paths: NodePaths, tmp_path: Path) -> None:
    far = str(tmp_path / "far")
    assert outputs_of(paths, spec(outputs=far), f"{far}/a", "b") == ({"a"}, {"b"})
    assert outputs_of(paths, spec(outputs=(far, "near")), "near/c") == ({"far/a", "near/c"}, {"b"})
    assert outputs_of(paths, spec(outputs=f"{far}/*.png"), f"{far}/d.png") == ({"d.png"}, {"b", "near/c"})


def test_one_of_several_folders_keeps_what_others_had_in_it_to_itself(paths: NodePaths, tmp_path: Path) -> None:
    write(tmp_path / "far/old", "private")
    baseline = Baseline.take([tmp_path / "far"])
    write(tmp_path / "far/new", "1")
    files = job_folders.output_files(paths, spec(outputs=(str(tmp_path / "far"), "near")), baseline)
    assert set(files.declared()) == {"far/new"}


def test_what_is_taken_back_is_not_kept_beside_the_code_either(paths: NodePaths) -> None:
    job = spec(outputs=("results", "!**/*.log"))
    assert outputs_of(paths, job, "results/a", "results/b.log", "c.log", "d") == ({"results/a"}, {"d"})


def test_an_output_folder_elsewhere_is_kept_under_the_usual_name_among_patterns(paths: NodePaths) -> None:
    """The code has a file called `outputs`."""
    write(paths.code / "outputs", "a file of the code")
    job = spec(outputs=("*.png",))
    assert job_folders.output_folder(paths, job) == paths.root / "outputs"
    baseline = Baseline.take([paths.code])
    write(paths.root / "outputs/a", "1")
    write(paths.code / "b.png", "1")
    files = job_folders.output_files(paths, job, baseline)
    assert set(files.declared()) == {"outputs/a", "b.png"}


def test_checkpoints_of_the_contract_inside_the_code_are_not_kept_beside_it(paths: NodePaths) -> None:
    job = spec("saves", environment=SAGEMAKER)
    assert job_folders.checkpoint_folder(paths, job) == paths.code / "saves"
    assert outputs_of(paths, job, "saves/a", "b") == (set(), {"code/b"})
    default = spec(environment=SAGEMAKER)
    assert outputs_of(paths, default)[1] == {"code/b", "code/saves/a"}
