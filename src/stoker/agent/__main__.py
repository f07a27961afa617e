"""`python -m stoker.agent NODE_DIR` runs the agent of a machine; with `-- COMMAND…`, a user's command beside it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path


def main() -> int:
    node, *rest = sys.argv[1:] or [""]
    if len(rest) > 1 and rest[0] == "--":
        from stoker.agent.exec_command import run_command

        return run_command(Path(node).absolute(), rest[1:])
    if rest or not node:
        print("usage: python -m stoker.agent NODE_DIR [-- COMMAND…]", file=sys.stderr)
        return 2
    from stoker.agent.main import run_agent

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    return run_agent(Path(node).absolute())


if __name__ == "__main__":
    sys.exit(main())
