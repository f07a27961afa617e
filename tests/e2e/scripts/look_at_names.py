"""Looks at the names of all nodes, and speaks to rank 0 by its name. Fails where a name or an address is wrong."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

nodes, rank, port = os.environ["NODES"].split(), int(os.environ["NODE_RANK"]), int(os.environ["MASTER_PORT"])
assert nodes[rank] == socket.gethostname(), (nodes, rank, socket.gethostname())
assert nodes.index(socket.gethostname()) == rank
found = [sorted({one[4][0] for one in socket.getaddrinfo(node, port)}) for node in nodes]
assert found[0] == [os.environ["MASTER_ADDR"]], found
if rank == 0:
    with socket.create_server((nodes[0], port)) as server:
        assert server.accept()[0].recv(10) == b"hello"
else:
    for _ in range(600):
        try:
            socket.create_connection((nodes[0], port)).sendall(b"hello")
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit(1)
print("seen", json.dumps({"nodes": nodes, "found": found}), flush=True)
