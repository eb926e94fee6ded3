"""The cores of this machine: which rank computes on which, and how long they were busy."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_cores() -> int:
    """Cores of the machine, also those that this process may not use."""
    return os.cpu_count() or 1


def core_prefix(rank: int) -> list[str]:
    """What runs a command on the core of a rank alone."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "--cpu-list", str(cores[rank])]


def idle_seconds() -> float:
    """Seconds for which the cores of this machine have been idle so far, all together, in steps of 10 ms.

    The rest is busy, interrupts and the kernel's work for the network included, which no process is charged with.
    """
    with open("/proc/stat", encoding="ascii") as stat:
        lines = [line.split() for line in stat if line.startswith("cpu") and not line.startswith("cpu ")]
    ticks = sum(int(line[4]) + int(line[5]) for line in lines)  # idle, and idle beside a disk that is waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def core_share(taken_seconds: float, wire_seconds: float) -> float:
    """Share of the transfers' time for which they hold the cores, each as long as the other.

    Where all cores compute all the time, at least that much is not hidden. Ignores what caches lose.
    """
    return taken_seconds / machine_cores() / wire_seconds
