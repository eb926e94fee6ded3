"""Network namespaces that stand for nodes, joined by rate-limited links through a bridge.

Within a node nothing is limited: its ranks share a namespace and talk over its loopback. Each node has one uplink, a
veth pair whose both ends are shaped by a token bucket filter. There is bandwidth to measure here, and no delay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UPLINK = "eth0"
"""The interface of a node, in its namespace."""

BURST = "256kb"
"""Bucket of the filter: more than a segment that the kernel hands over in one piece."""

COMMAND_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """One namespace."""

    name: str
    """Of the namespace."""

    address: str
    """IPv4 address of its uplink."""

    @property
    def prefix(self) -> list[str]:
        """What runs a command in it."""
        return ["ip", "netns", "exec", self.name]


def reason_against() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 not found"
    if os.geteuid() != 0:
        return "network namespaces and traffic shaping need root"
    probe = f"taot-{os.getpid()}-probe"
    try:
        _run(f"ip netns add {probe}")
    except RuntimeError as error:
        return f"no network namespace can be made here ({error})"
    _run(f"ip netns del {probe}")
    return ""


@contextmanager
def joined_nodes(num_nodes: int, *, megabits: int) -> Iterator[list[Node]]:
    """Makes nodes whose uplinks carry `megabits` a second in each direction; takes everything away at the end.

    Raises:
        RuntimeError: if a command fails.
    """
    pid = os.getpid()
    hub = f"taot-{pid}-hub"
    nodes = [Node(name=f"taot-{pid}-{index}", address=f"10.99.0.{index + 1}") for index in range(num_nodes)]
    try:
        # The bridge has a namespace of its own, so that nothing of this machine's network is touched.
        _run(f"ip netns add {hub}")
        _run(f"ip -n {hub} link add bridge type bridge", f"ip -n {hub} link set bridge up")
        for index, node in enumerate(nodes):
            _run(f"ip netns add {node.name}", f"ip -n {node.name} link set lo up")
            _run(f"ip -n {node.name} link add {UPLINK} type veth peer name port{index} netns {hub}")
            _run(f"ip -n {node.name} addr add {node.address}/24 dev {UPLINK}")
            _run(f"ip -n {hub} link set port{index} master bridge")
            for namespace, device in ((node.name, UPLINK), (hub, f"port{index}")):
                _run(f"ip -n {namespace} link set {device} up")
                shape = f"tbf rate {megabits}mbit burst {BURST} latency 50ms"
                _run(f"tc -n {namespace} qdisc add dev {device} root {shape}")
        yield nodes
    finally:
        for name in [*(node.name for node in nodes), hub]:
            # Its interfaces go with it, also where it is half made.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_SECONDS, check=False)


def sent_bytes() -> int:
    """Bytes that the uplink of this process's namespace has sent so far, headers included."""
    return int(Path(f"/sys/class/net/{UPLINK}/statistics/tx_bytes").read_text())


def _run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.strip()}")
