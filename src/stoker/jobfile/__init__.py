"""From what people write to a validated spec.

    layers = gather(job_file=find_job_file(), sets=["params.lr=1e-3"])
    resolved = resolve(layers, registry.capabilities)     # .spec, and .told: what to tell the person

YAML is imported only when some is read.
"""

from stoker.jobfile.document import Layer, assignments, layer_of, read_layer
from stoker.jobfile.env_file import env_file
from stoker.jobfile.job import Job
from stoker.jobfile.layers import find_job_file, gather, house_layer, job_layer, named_provider, user_file, user_layer
from stoker.jobfile.parse import base_folder, parse_job
from stoker.jobfile.provider_fields import ALWAYS_HONOURED, Resolved, check_honoured, finalize, resolve
from stoker.jobfile.render import document, spec_layer
from stoker.jobfile.template import template

__all__ = [
    "ALWAYS_HONOURED",
    "Job",
    "Layer",
    "Resolved",
    "assignments",
    "base_folder",
    "check_honoured",
    "document",
    "env_file",
    "finalize",
    "find_job_file",
    "gather",
    "house_layer",
    "job_layer",
    "layer_of",
    "named_provider",
    "parse_job",
    "read_layer",
    "resolve",
    "spec_layer",
    "template",
    "user_file",
    "user_layer",
]
