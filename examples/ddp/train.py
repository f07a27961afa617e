"""Distributed data parallel over gloo: `torchrun train.py`, with no other flag, on any number of nodes.

Every rank must leave at the same step, or the others would wait for it in a collective. So the ranks agree on being
interrupted: each says what it has seen, and the maximum counts for all.
"""

from __future__ import annotations

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stoker import train


def anybody_interrupted() -> bool:
    flag = torch.tensor([1.0 if train.interrupted() else 0.0])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def fit(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truth = torch.arange(8.0).unsqueeze(1)

    start = 0
    latest = train.latest()
    if latest is not None:
        state = torch.load(latest / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    attempt = os.environ.get("STOKER_ATTEMPT", "0")
    print(f"attempt {attempt} rank {rank} of {dist.get_world_size()} starts at {start}", flush=True)

    for step in range(start + 1, args.steps + 1):
        data = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 8, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.pause)
        if rank == 0:
            train.report(step=step, loss=loss.item())
        stop = anybody_interrupted()
        # Only rank 0 saves: with data parallelism every rank holds the same weights.
        if rank == 0 and (stop or step % 20 == 0):
            with train.checkpoint(f"step-{step}", step=step) as folder:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, folder / "state.pt")
        if stop:
            print(f"rank {rank} interrupted at step {step}", flush=True)
            break
    else:
        print(f"rank {rank} finished with loss {loss.item():.5f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--pause", type=float, default=0.05, help="seconds a step takes besides its arithmetic")
    args = options.parse_args()

    dist.init_process_group("gloo")
    fit(args)
    # The model holds on to the process group. Whatever is left of it when Python ends makes gloo's threads abort
    # (https://github.com/pytorch/pytorch/pull/179291).
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
