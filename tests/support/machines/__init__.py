"""Machines that really boot, for the clouds of tests: Debian with systemd under nspawn, on a network of their own.

Needs root, Debian's machine tools and a network namespace with no way out: `why_no_machines()` says what is missing.
"""

from __future__ import annotations

from tests.support.machines.needs import why_no_machines

__all__ = ["why_no_machines"]
