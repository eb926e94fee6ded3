"""Network namespaces that stand for nodes, joined by rate-limited links: two by a cable, more through a bridge.

Within a node nothing is limited: its ranks share a namespace and talk over its loopback. Each node has one uplink, a
veth pair whose ends send through a token bucket filter. There is bandwidth to measure here, and no delay.

A byte takes as long as on a real link, headers of 1500-byte packets included, and as little of the cores as can be:
there is no network card that cuts up what they send and puts it together again. So the kernel hands over up to
`SEGMENT_BYTES` in one piece ("BIG TCP", which `ip` can set for IPv6), since each costs a timer, two or three wake-ups
and as many exits of a virtual machine; and it sends when the filter lets it, not by timers of its own as BBR does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UPLINK = "eth0"
"""The interface of a node, in its namespace."""

BURST = "256kb"
"""Bucket of the filter: more than a segment that the kernel hands over in one piece."""

SEGMENT_BYTES = 192 * 1024
"""Most that the kernel hands over in one piece."""

CONGESTION_CONTROL = "reno"
"""Needs no timers, and no permission inside a namespace."""

COMMAND_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """One namespace."""

    name: str
    """Of the namespace."""

    address: str
    """IPv6 address of its uplink."""

    @property
    def prefix(self) -> list[str]:
        """What runs a command in it."""
        return ["ip", "netns", "exec", self.name]


def reason_against() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    missing = [tool for tool in ("ip", "tc", "sysctl") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 and procps not found"
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
    nodes = [Node(name=f"taot-{pid}-{index}", address=f"fd00:7a07::{index + 1}") for index in range(num_nodes)]
    try:
        for node in nodes:
            _run(f"ip netns add {node.name}", f"ip -n {node.name} link set lo up")
        if num_nodes == 2:  # a bridge would carry every byte once more
            _run(f"ip -n {nodes[0].name} link add {UPLINK} type veth peer name {UPLINK} netns {nodes[1].name}")
        else:
            _join_by_bridge(hub, nodes, megabits=megabits)
        for node in nodes:
            # An address of its own making might be taken for that of the node.
            _run(f"ip -n {node.name} link set {UPLINK} addrgenmode none")
            _run(f"ip -n {node.name} addr add {node.address}/64 dev {UPLINK} nodad")
            _start_uplink(node.name, UPLINK, megabits=megabits)
            setting = f"net.ipv4.tcp_congestion_control={CONGESTION_CONTROL}"  # of both IPv4 and IPv6
            _run(f"{' '.join(node.prefix)} sysctl -qw {setting}")
        yield nodes
    finally:
        for name in [*(node.name for node in nodes), hub]:
            # Its interfaces go with it, also where it is half made.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_SECONDS, check=False)


def _join_by_bridge(hub: str, nodes: Sequence[Node], *, megabits: int) -> None:
    """Makes uplinks that meet in a bridge; it has a namespace of its own, so that nothing of the host is touched."""
    _run(f"ip netns add {hub}")
    _run(f"ip -n {hub} link add bridge type bridge", f"ip -n {hub} link set bridge up")
    for index, node in enumerate(nodes):
        _run(f"ip -n {node.name} link add {UPLINK} type veth peer name port{index} netns {hub}")
        _run(f"ip -n {hub} link set port{index} master bridge")
        _start_uplink(hub, f"port{index}", megabits=megabits)


def _start_uplink(namespace: str, device: str, *, megabits: int) -> None:
    """Shapes what one end of an uplink sends."""
    sizes = f"gso_max_size {SEGMENT_BYTES} gro_max_size {SEGMENT_BYTES}"
    _run(f"ip -n {namespace} link set {device} {sizes}", f"ip -n {namespace} link set {device} up")
    shape = f"tbf rate {megabits}mbit burst {BURST} latency 50ms"
    _run(f"tc -n {namespace} qdisc add dev {device} root {shape}")


def sent_bytes() -> int:
    """Bytes that the uplink of this process's namespace has sent so far, headers included."""
    return int(Path(f"/sys/class/net/{UPLINK}/statistics/tx_bytes").read_text())


def _run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.strip()}")
