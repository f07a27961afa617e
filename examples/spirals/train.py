"""A small real model, in plain Python: a network with one hidden layer learns to tell two spirals apart.

Nothing here is special to Stoker but the three calls of `stoker.train`; without Stoker they do nothing. The run is
deterministic: interrupted or not, the final weights are the same to the last bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
from pathlib import Path

from stoker import train

HIDDEN = 32


def spirals(count: int, rng: random.Random) -> list[tuple[float, float, float]]:
    """Points on two arms that wind around each other, with their labels."""
    points = []
    for index in range(count):
        arm = index % 2
        radius = 0.3 + 2.2 * rng.random()
        angle = 3.2 * radius + math.pi * arm
        points.append((radius * math.cos(angle), radius * math.sin(angle), float(arm)))
    return points


class Network:
    """Two inputs, one hidden layer, one output; trained with momentum."""

    def __init__(self, rng: random.Random) -> None:
        self.w = [[rng.gauss(0, 1.0) for _ in range(3)] for _ in range(HIDDEN)]
        self.v = [rng.gauss(0, 0.5) for _ in range(HIDDEN + 1)]
        self.dw = [[0.0] * 3 for _ in range(HIDDEN)]
        self.dv = [0.0] * (HIDDEN + 1)

    def step(self, batch: list[tuple[float, float, float]], lr: float) -> float:
        """One update; returns the loss before it."""
        gw = [[0.0] * 3 for _ in range(HIDDEN)]
        gv = [0.0] * (HIDDEN + 1)
        loss = 0.0
        for x, y, label in batch:
            hidden = [math.tanh(a * x + b * y + c) for a, b, c in self.w]
            output = 1 / (1 + math.exp(-sum(v * h for v, h in zip(self.v, hidden, strict=False)) - self.v[-1]))
            loss -= math.log(max(output if label else 1 - output, 1e-12))
            error = output - label
            gv[-1] += error
            for j, h in enumerate(hidden):
                gv[j] += error * h
                back = error * self.v[j] * (1 - h * h)
                gw[j][0] += back * x
                gw[j][1] += back * y
                gw[j][2] += back
        scale = lr / len(batch)
        for j in range(HIDDEN):
            for k in range(3):
                self.dw[j][k] = 0.9 * self.dw[j][k] - scale * gw[j][k]
                self.w[j][k] += self.dw[j][k]
        for j in range(HIDDEN + 1):
            self.dv[j] = 0.9 * self.dv[j] - scale * gv[j]
            self.v[j] += self.dv[j]
        return loss / len(batch)

    def digest(self) -> str:
        """The name of these very weights."""
        return hashlib.sha256(json.dumps([self.w, self.v]).encode()).hexdigest()[:16]


def save(folder: Path, step: int, network: Network, rng: random.Random) -> None:
    state = {"step": step, "network": vars(network), "rng": rng.getstate()}
    (folder / "state.json").write_text(json.dumps(state))


def load(folder: Path, network: Network, rng: random.Random) -> int:
    state = json.loads((folder / "state.json").read_text())
    vars(network).update(state["network"])
    version, internal, gauss = state["rng"]
    rng.setstate((version, tuple(internal), gauss))
    return int(state["step"])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=900)
    options.add_argument("--batch", type=int, default=1200)
    options.add_argument("--lr", type=float, default=0.05)
    args = options.parse_args()

    rng = random.Random(7)
    points = spirals(1600, rng)
    network = Network(rng)
    step = 0
    latest = train.latest()
    if latest is not None:
        step = load(latest, network, rng)

    while step < args.steps:
        loss = network.step(rng.sample(points, args.batch), args.lr)
        step += 1
        train.report(step=step, loss=loss)
        if step % 100 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        stop = train.interrupted()
        if step % 50 == 0 or stop:
            with train.checkpoint(f"step-{step}", step=step) as folder:
                save(folder, step, network, rng)
        if stop:
            print(f"interrupted at step {step}", flush=True)
            return
    (train.output_dir() / "weights.json").write_text(json.dumps([network.w, network.v]))
    print(f"finished: loss {loss:.4f}, weights {network.digest()}", flush=True)


if __name__ == "__main__":
    main()
