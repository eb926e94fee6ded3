"""What a process holds in memory, as the kernel sees it."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int | str = "self") -> float:
    """Resident memory in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no memory: it has ended")
