"""The training example that `taot demo` and `taot observe` run, and the other files that come with the package."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from taot_cli.child_process import ChildFailedError


def training_command(*arguments: str, ranks: int) -> list[str]:
    """The command that trains the example with `ranks` processes on this machine.

    Raises:
        ChildFailedError: if the example is missing.
    """
    example = find_shared("examples/train_moe.py", installed="train_moe.py")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    return [sys.executable, *torchrun, "--nproc-per-node", str(ranks), str(example), *arguments]


def find_shared(path: str, *, installed: str) -> Path:
    """A file or folder of the project, in a checkout or where an installed wheel puts it.

    Args:
        path: where it is in a checkout.
        installed: what it is called among the installed files.

    Raises:
        ChildFailedError: if it is missing.
    """
    candidates = [
        Path(__file__).parents[2] / path,
        Path(sysconfig.get_path("data")) / "share" / "taot-planner" / installed,
    ]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise ChildFailedError(f"{path} is missing, looked for {', '.join(map(str, candidates))}")
