"""A script as it was written for SageMaker. Nothing in it knows of Stoker: a line is fitted to points, by hand.

It reads a channel, takes hyperparameters as arguments, saves to /opt/ml/checkpoints and goes on from there, and leaves
its model in SM_MODEL_DIR.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

CHECKPOINTS = Path("/opt/ml/checkpoints")
FAILURE = Path("/opt/ml/output/failure")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
    args = parser.parse_args()

    points = [
        tuple(map(float, line.split(",")))
        for path in sorted(Path(args.train).glob("*.csv"))
        for line in path.read_text().splitlines()
    ]
    if not points:
        FAILURE.write_text(f"there are no points in {args.train}")
        sys.exit(1)

    state = {"epoch": 0, "slope": 0.0, "offset": 0.0}
    saved = sorted(CHECKPOINTS.glob("epoch-*.json"))
    if saved:
        state = json.loads(saved[-1].read_text())
        print(f"going on after epoch {state['epoch']}")

    while state["epoch"] < args.epochs:
        loss = 0.0
        for x, y in points:
            error = state["slope"] * x + state["offset"] - y
            loss += error**2 / len(points)
            state["slope"] -= args.learning_rate * error * x
            state["offset"] -= args.learning_rate * error
        state["epoch"] += 1
        print(f"epoch={state['epoch']} train_loss={loss:.6f}", flush=True)
        draft = CHECKPOINTS / ".draft"
        draft.write_text(json.dumps(state))
        draft.rename(CHECKPOINTS / f"epoch-{state['epoch']:04d}.json")
        time.sleep(args.pause)

    Path(args.model_dir, "line.json").write_text(json.dumps({name: state[name] for name in ("slope", "offset")}))


if __name__ == "__main__":
    main()
