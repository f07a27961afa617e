"""Turn what people write (YAML, flags, Python) into a validated spec.

    layers = (*shared_layers(store), *job_layers(find_job_file(), sets=["params.lr=1e-3"]))
    resolved = resolve(layers, registry.capabilities)     # .spec and .warnings

YAML is imported only when some is read.
"""

from stoker.jobfile.env_file import env_file
from stoker.jobfile.job import Job
from stoker.jobfile.layers import (
    defaults_layer,
    find_job_file,
    job_layer,
    job_layers,
    named_provider,
    own_layers,
    shared_layers,
    user_file,
    user_layer,
)
from stoker.jobfile.parse import base_folder, parse_job
from stoker.jobfile.provider_fields import (
    ALWAYS_HONOURED,
    ANSWERED,
    UNLIMITED,
    ResolvedJob,
    apply_default_limits,
    check_honoured,
    resolve,
    resolve_job,
    resolve_spec,
)
from stoker.jobfile.render import document, spec_layer
from stoker.jobfile.settings_tree import Layer, assignments, layer_of, read_layer
from stoker.jobfile.template import template

__all__ = [
    "ALWAYS_HONOURED",
    "ANSWERED",
    "UNLIMITED",
    "Job",
    "Layer",
    "ResolvedJob",
    "apply_default_limits",
    "assignments",
    "base_folder",
    "check_honoured",
    "defaults_layer",
    "document",
    "env_file",
    "find_job_file",
    "job_layer",
    "job_layers",
    "layer_of",
    "named_provider",
    "own_layers",
    "parse_job",
    "read_layer",
    "resolve",
    "resolve_job",
    "resolve_spec",
    "shared_layers",
    "spec_layer",
    "template",
    "user_file",
    "user_layer",
]
