"""The paths of a job's folders on a node, as its agent sees them.

With `contract: sagemaker` only the training sees `/opt/ml` (`stoker.agent.sagemaker_scripts`):

    <node>/ml/                everything that has no other folder: input/config, output, checkpoints
    <node>/artifacts/         the job's outputs
        model/                /opt/ml/model
        data/                 /opt/ml/output/data
        intermediate/         /opt/ml/output/intermediate
        outputs/              the folder that `outputs` names, if it is another one
    <node>/code/              /opt/ml/code
    <node>/hosts              /etc/hosts

A machine that has `/opt/ml` itself, a training job of SageMaker's, needs none of this: the folders are where the script
expects them, and only `<node>/artifacts/` is elsewhere.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import Files, LinkWarnings, Selection, scan
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.confinement import Confinement
from stoker.agent.node import AgentNode
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource, without_caches
from stoker.model.hyperparameters import CHECKPOINTS, CODE, ML, MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE
from stoker.model.node_config import NodePaths
from stoker.model.path_patterns import PathFilter, base_of, below, common_base, entries_of, has_wildcard, is_pattern
from stoker.model.spec import Checkpoints, Spec
from stoker.providers.base import RunsInContainer
from stoker.store.checkpoint_manifests import TrustedClaims

# The output folder of a job that names none, below the code; `stoker.train` takes the same one outside Stoker.
OUTPUTS = "outputs"


def checkpoint_folder(paths: NodePaths, spec: Spec) -> Path:
    """Return the folder of the training's saves; with patterns, the folder that holds all of them."""
    inside = checkpoints_inside(spec)
    return paths.code / common_base(entries_of(spec.checkpoints.dir)) if inside is None else outside(paths, inside)


def checkpoint_filter(spec: Spec) -> PathFilter | None:
    """Return the filter of checkpoints in the checkpoint folder; None if all files are checkpoints."""
    entries = entries_of(spec.checkpoints.dir)
    base = common_base(entries)
    if not _selective(spec):
        return None
    # A folder of outputs inside is synced as outputs.
    kept = () if base.startswith("/") else tuple(f"!{entry}" for entry in _plain_outputs(spec) if entry != ".")
    return PathFilter(below((*entries, *kept), base))


def _selective(spec: Spec) -> bool:
    """Return whether the folder may hold other files than checkpoints, such as the code."""
    entries = entries_of(spec.checkpoints.dir)
    return len(entries) > 1 or entries[0] == "." or is_pattern(entries[0])


def confinement(node: AgentNode, spec: Spec) -> Confinement | None:
    """Return the rules that keep the agent from following links of a container; None without a container."""
    if not has_engine(node, spec):
        return None
    return Confinement((node.paths.root, *written(node.paths, spec)), node.say)


def has_engine(node: AgentNode, spec: Spec) -> bool:
    """Return whether commands run in a container that this node's agent creates."""
    return spec.environment.container is not None and not isinstance(node.machine, RunsInContainer)


def checkpoint_selection(
    paths: NodePaths,
    spec: Spec,
    baseline: Baseline,
    confinement: Confinement | None = None,
    say: Callable[[str], None] = lambda _text: None,
) -> Selection:
    """Return the selection of checkpoints in the checkpoint folder, without files of others if it is shared.

    `say` writes to the job's log which links are left out, where the folder is the job's own.
    """
    leave_out = LinkWarnings(say) if not is_shared(paths, spec) else None

    def scan_all(folder: Path) -> Files:
        return scan(folder, confinement=confinement, leave_out=leave_out, closed_folders=True)

    if not is_shared(paths, spec):
        return Selection(scan_all, confinement=confinement, was_there=baseline.has_file)
    chosen = checkpoint_filter(spec)

    def scan_own(folder: Path) -> Files:
        return {
            path: file
            for path, file in without_caches(scan_all(folder)).items()
            if (chosen is None or chosen.takes(path)) and not baseline.has_file(folder, file)
        }

    takes = chosen.takes if chosen is not None else lambda _path: True
    return Selection(scan_own, takes, confinement, baseline.has_file)


def sync_options(
    node: AgentNode,
    spec: Spec,
    baseline: Baseline,
    trust: TrustedClaims,
    say: Callable[[str], None] = lambda _text: None,
) -> SyncOptions:
    """Return the options of the checkpoint sync that are the same for every agent of this node.

    `baseline`: the files from before the training. `say` as for `checkpoint_selection`.
    """
    config, paths = node.config, node.paths
    return SyncOptions(
        store=node.store,
        job=config.job,
        claim=config.claim,
        rank=config.rank,
        nodes=config.nodes,
        folder=checkpoint_folder(paths, spec),
        channel=paths.channel,
        scratch=paths.scratch,
        keep=spec.checkpoints.keep,
        trust=trust,
        selection=checkpoint_selection(paths, spec, baseline, confinement(node, spec), say),
        say=say,
    )


def watched(paths: NodePaths, spec: Spec) -> list[Path]:
    """Return the folders that may hold files of others: files from before the training are not the job's."""
    found = [paths.code, *_absolute(spec)]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def written(paths: NodePaths, spec: Spec) -> list[Path]:
    """Return the folders outside the code that the training writes to, and that of its outputs, to be created."""
    return list(dict.fromkeys([checkpoint_folder(paths, spec), output_folder(paths, spec), *_absolute(spec)]))


def _absolute(spec: Spec) -> list[Path]:
    if spec.environment.contract is not None:
        return []
    entries = (*entries_of(spec.checkpoints.dir), *entries_of(spec.outputs))
    return [Path(base_of(entry)) for entry in entries if entry.startswith("/")]


def is_shared(paths: NodePaths, spec: Spec) -> bool:
    """Return whether the checkpoint folder may hold files of others: outside the node, or with patterns."""
    return _selective(spec) or not paths.is_own(checkpoint_folder(paths, spec))


def checkpoints_inside(spec: Spec) -> str | None:
    """Return the path at which the training sees the checkpoint folder, if that is in the tree that only it sees."""
    if spec.environment.contract is None:
        return None
    if spec.checkpoints.dir == Checkpoints().dir:
        return CHECKPOINTS
    folder = posixpath.normpath(posixpath.join(CODE, *entries_of(spec.checkpoints.dir)[:1]))
    return folder if folder.startswith(f"{ML}/") else None


def output_folder(paths: NodePaths, spec: Spec) -> Path:
    """Return the folder for the training's results, STOKER_OUTPUT_DIR. There always is one."""
    if spec.environment.contract is not None:
        return artifacts(paths)
    plain = _plain_outputs(spec)
    if plain:
        return paths.code / plain[0]
    default = paths.code / OUTPUTS
    # If the code has a file with this name, the folder lies elsewhere.
    return paths.root / OUTPUTS if default.exists() and not default.is_dir() else default


def output_files(
    paths: NodePaths, spec: Spec, baseline: Baseline, confinement: Confinement | None = None
) -> OutputFiles:
    """Return the finder of outputs. `baseline` are the files from before the training.

    The files of a single output folder are at the top of the stored tree. With several folders, or patterns, files keep
    their paths from the working folder. Files beside the code always keep them.
    """
    top = output_folder(paths, spec)
    if spec.environment.contract is not None:
        beside = _beside(paths, spec, prefix="code/")
        found = [OutputSource(top, takes_all=True), *_results_in_place(paths, spec)]
        return OutputFiles(found, beside, baseline, confinement=confinement)
    entries = entries_of(spec.outputs)
    relative = tuple(entry for entry in entries if not entry.removeprefix("!").startswith("/"))
    sources: list[OutputSource] = []
    if not any(is_pattern(entry) for entry in entries) and len(entries) <= 1 and top != paths.code:
        sources.append(OutputSource(top, takes_all=top.is_relative_to(paths.root)))
    else:
        chosen = PathFilter(relative if _plain_outputs(spec) else (OUTPUTS, *relative))
        saved, both = _saved_filter(paths, spec), _named_among_checkpoints(spec)
        sources.append(
            OutputSource(
                paths.code, takes=lambda path: chosen.takes(path) and (both.takes(path) or not saved.takes(path))
            )
        )
        # The node's own folder, if the code has a file with this name. Absolute folders of the job are added below.
        if top.is_relative_to(paths.root) and not top.is_relative_to(paths.code):
            sources.append(OutputSource(top, f"{OUTPUTS}/", takes_all=True))
    if len(entries) > 1 or any(is_pattern(entry) for entry in entries):
        for entry in entries:
            if entry.startswith("/"):
                base = base_of(entry)
                prefix = f"{posixpath.basename(base)}/" if len(entries) > 1 else ""
                sources.append(OutputSource(Path(base), prefix, PathFilter(below((entry,), base)).takes))
    refused = _refused_filter(spec).takes
    return OutputFiles(sources, _beside(paths, spec), baseline, confinement=confinement, refused=refused)


def _results_in_place(paths: NodePaths, spec: Spec) -> list[OutputSource]:
    """Return the output folders of a machine that has `/opt/ml` itself: they are stored as if they were in one."""
    if paths.ml is None:
        return []
    found = sources(paths)
    named = {"model": found[MODEL], "data": found[OUTPUT_DATA], "intermediate": found[OUTPUT_INTERMEDIATE]}
    own = outputs_inside(spec)
    if own is not None:
        named["outputs"] = outside(paths, own)
    return [OutputSource(folder, f"{name}/", takes_all=True) for name, folder in named.items()]


def _beside(paths: NodePaths, spec: Spec, prefix: str = "") -> OutputSource:
    """Return the working folder without declared files, checkpoints, and files excluded with `!`."""
    saved = _saved_filter(paths, spec)
    entries = entries_of(spec.outputs)
    top = output_folder(paths, spec)
    plain = (top.relative_to(paths.code).as_posix(),) if top != paths.code and top.is_relative_to(paths.code) else ()
    inside = tuple(
        source.folder.relative_to(paths.code).as_posix()
        for source in _results_in_place(paths, spec)
        if source.folder.is_relative_to(paths.code)
    )
    declared = PathFilter((*plain, *inside, *(entry for entry in entries if not entry.startswith(("/", "!")))))
    # A file that `!` excludes from all outputs is excluded here, too.
    refused = _refused_filter(spec)
    return OutputSource(
        paths.code,
        prefix,
        lambda path: not (declared.takes(path) or refused.takes(path) or saved.takes(path)),
    )


def _saved_filter(paths: NodePaths, spec: Spec) -> PathFilter:
    """Return the filter of checkpoints in the working folder."""
    if spec.environment.contract is not None:
        folder = checkpoint_folder(paths, spec)
        inside = folder.is_relative_to(paths.code) and folder != paths.code
        return PathFilter((folder.relative_to(paths.code).as_posix(),) if inside else ())
    entries = entries_of(spec.checkpoints.dir)
    kept = tuple(f"!{entry}" for entry in _plain_outputs(spec) if entry != "." and "." in entries)
    return PathFilter((*(entry for entry in entries if not entry.startswith("/")), *kept))


def _named_among_checkpoints(spec: Spec) -> PathFilter:
    """Return the filter of checkpoints that `outputs` names, such as `checkpoints/best.pt`: they are outputs, too.

    A pattern that only happens to match checkpoints, such as `**`, does not name them.
    """
    saved = entries_of(spec.checkpoints.dir)
    folders = [entry for entry in saved if entry != "." and not is_pattern(entry)]

    def named(entry: str) -> bool:
        base = base_of(entry)
        inside = any(base == folder or base.startswith(f"{folder}/") for folder in folders)
        return is_pattern(entry) and (inside or not has_wildcard(entry))

    entries = entries_of(spec.outputs)
    return PathFilter(tuple(entry for entry in entries if not entry.startswith(("!", "/")) and named(entry)))


def _refused_filter(spec: Spec) -> PathFilter:
    """Return the filter of files that `outputs` excludes with `!`."""
    return PathFilter(tuple(entry[1:] for entry in entries_of(spec.outputs) if entry.startswith("!")))


def is_output(paths: NodePaths, spec: Spec, path: str) -> bool:
    """Return True for a file of the checkpoint folder that `outputs` names or excludes."""
    folder = checkpoint_folder(paths, spec)
    if spec.environment.contract is not None or not folder.is_relative_to(paths.code):
        return False
    inside = (folder / path).relative_to(paths.code).as_posix()
    return _named_among_checkpoints(spec).takes(inside) or _refused_filter(spec).takes(inside)


def _plain_outputs(spec: Spec) -> tuple[str, ...]:
    return tuple(entry for entry in entries_of(spec.outputs) if not is_pattern(entry))


def outputs_inside(spec: Spec) -> str | None:
    """Return where the training sees the folder that `outputs` names, unless it is one of the contract's."""
    if spec.environment.contract is None or spec.outputs is None:
        return None
    folder = posixpath.normpath(posixpath.join(CODE, *entries_of(spec.outputs)[:1]))
    return None if folder in (MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE) else folder


def artifacts(paths: NodePaths) -> Path:
    return paths.root / "artifacts"


def sources(paths: NodePaths) -> dict[str, Path]:
    """Return the folders of the machine behind the paths in `/opt/ml`, the outermost first."""
    if paths.ml is not None:
        return {path: paths.ml / path[len(ML) + 1 :] for path in (ML, CODE, MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE)}
    kept = artifacts(paths)
    return {
        ML: paths.root / "ml",
        CODE: paths.code,
        MODEL: kept / "model",
        OUTPUT_DATA: kept / "data",
        OUTPUT_INTERMEDIATE: kept / "intermediate",
    }


def outside(paths: NodePaths, path: str) -> Path:
    """Return the path of the machine behind this path in `/opt/ml`; other paths are the machine's own."""
    found = sources(paths)
    if path != ML and not path.startswith(f"{ML}/"):
        return Path(path)
    target = max((each for each in found if path == each or path.startswith(f"{each}/")), key=len)
    return found[target] / path[len(target) :].lstrip("/")
