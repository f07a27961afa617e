"""The feature level of this machine's processor: code compiled for one may not run on another of its family."""

from __future__ import annotations

import platform
from pathlib import Path

# The usual x86-64 levels, each with the Linux names of the features that it adds.
_X86_64 = (
    ("v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    ("v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    ("v4", "avx512bw avx512cd avx512dq avx512f avx512vl"),
)
# The differences between rentable servers: ARMv8.1 added atomics, later ones added scalable vectors.
_ARM64 = (("v8.1", "atomics"), ("sve", "sve"), ("sve2", "sve2"))
# Of each machine type the lowest level, and those above it with the flags that they add.
_LEVELS = {"x86_64": ("v1", _X86_64), "aarch64": ("v8", _ARM64), "arm64": ("v8", _ARM64)}


def parse_level(cpuinfo: str, machine: str) -> str:
    """Return the level of the first processor in the text; empty for a processor without levels."""
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(words.split())
            break
    level, steps = _LEVELS.get(machine, ("", ()))
    for name, added in steps:
        if not set(added.split()) <= flags:
            break
        level = name
    return level


def level() -> str:
    """Return the level of this machine's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_level(text, platform.machine())
