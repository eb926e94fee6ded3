"""Which thread gets a processor first where there are too few."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

NICENESS = 10
"""Of threads that plan: a tenth of the processor time of a thread of niceness 0, where both want more than there is."""


def give_way() -> None:
    """Lets other threads of the process go before this one, where the system knows how.

    A plan takes milliseconds; whoever calls waits for the event loop.
    """
    if sys.platform == "linux":  # where niceness is of threads
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
