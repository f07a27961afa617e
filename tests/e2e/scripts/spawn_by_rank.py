"""Starts a process for each device and joins all of them, as scripts for plain EC2 instances do.

A node knows its rank from NODE_RANK and their number from NUM_NODES, and rank 0 by MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEVICES = torch.cuda.device_count() or 2


def join(device: int) -> None:
    world = int(os.environ.get("NUM_NODES", "1")) * DEVICES
    rank = int(os.environ.get("NODE_RANK", "0")) * DEVICES + device
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=rank, world_size=world)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    print(f"rank {rank} of {world} on {socket.gethostname()}: all add up to {int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(join, nprocs=DEVICES)
