"""What `make chaos`, `make fuzz` and `make soak` may be told in the environment."""

from __future__ import annotations

import os
import random


def number(name: str, default: int) -> int:
    """An integer from the environment, such as KILLS."""
    return int(os.environ.get(name, default))


def seed() -> int:
    """SEED, or one of its own, which is printed so that a run can be repeated."""
    chosen = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**31))
    print(f"\nSEED={chosen}", flush=True)
    return chosen
