"""`python -m stoker.agent NODE_DIR`: what every machine runs."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from stoker.agent.main import run_agent


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m stoker.agent NODE_DIR", file=sys.stderr)
        return 2
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    return run_agent(Path(sys.argv[1]).absolute())


if __name__ == "__main__":
    sys.exit(main())
