"""Fake clouds, booted machines, container engines and the simulation, for tests and measurements."""

from pathlib import Path

# Servers for tests are modules of this folder: they start where Python finds it.
ROOT = Path(__file__).resolve().parents[2]
