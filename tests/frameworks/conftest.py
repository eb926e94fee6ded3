from __future__ import annotations

import pytest
import torch

from taot_client import counts_gather, token_layout
from taot_planning import warm_up

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernels() -> None:
    """Kernels are compiled before ranks wait for each other under the bounds of a test."""
    warm_up(["taot"], has_recent=False)
    token_layout.warm_up()
    counts_gather.warm_up()
