"""Levels of processors: code that was compiled for one need not run on another."""

from __future__ import annotations

import pytest

from stoker.agent.environment.cpu_level import level, parse_level

V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"


@pytest.mark.parametrize(
    ("machine", "text", "expected"),
    [
        ("x86_64", "flags\t\t: fpu sse2\n", "v1"),
        ("x86_64", f"processor\t: 0\nflags\t\t: fpu {V2} avx\n", "v2"),
        ("x86_64", f"flags\t\t: fpu {V3} avx512f\n", "v3"),
        ("x86_64", f"flags\t\t: fpu {V4}\n\nflags\t\t: fpu\n", "v4"),
        ("aarch64", "Features\t: fp asimd\n", "v8"),
        ("aarch64", "Features\t: fp asimd atomics\n", "v8.1"),
        ("aarch64", "Features\t: fp asimd atomics sve\n", "sve"),
        ("arm64", "Features\t: fp asimd atomics sve sve2\n", "sve2"),
        ("x86_64", "", "v1"),
        ("riscv64", "isa : rv64\n", ""),
    ],
)
def test_levels(machine: str, text: str, expected: str) -> None:
    assert parse_level(text, machine) == expected


def test_this_machine_has_one() -> None:
    assert level()
