"""Starts a process for each device and joins all of them, as scripts for plain Compute Engine machines do.

A node finds its rank by its own host name in the list of all, and rank 0 by MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEVICES = torch.cuda.device_count() or 2


def join(device: int) -> None:
    nodes = os.environ["NODES"].split()
    node = nodes.index(socket.gethostname())
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=node * DEVICES + device, world_size=len(nodes) * DEVICES)
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {nodes[node]}: all add up to {int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(join, nprocs=DEVICES)
