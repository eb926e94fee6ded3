"""Lets `megatron.core` run where there is neither a GPU nor Transformer Engine.

For the example and the tests alone. What is there is left as it is.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import contextlib
from typing import Any

import torch
from megatron.core.tensor_parallel import random as random_states
from megatron.core.transformer.moe import moe_utils, token_dispatcher


class _NoStream:
    """Everything has happened by the time a call returns."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: object) -> None:
        """Nothing to wait for."""

    def record_event(self) -> _NoStream:
        """An event that has happened."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""


def stand_in() -> None:
    """Makes what Megatron misses, for this process: before any of its models is built."""
    if not torch.cuda.is_available():
        _stand_in_for_cuda()
    # It asks whether this is None and forgets to say so where Transformer Engine is missing.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def _stand_in_for_cuda() -> None:
    stream = _NoStream()
    stand_ins: dict[str, Any] = {
        "current_device": lambda: torch.device("cpu"),
        "Stream": lambda *args, **kwargs: stream,
        "current_stream": lambda *args, **kwargs: stream,
        "stream": lambda stream: contextlib.nullcontext(),
    }
    for name, each in stand_ins.items():
        setattr(torch.cuda, name, each)
    torch._dynamo.config.disable = True  # Megatron compiles small functions, which takes longer than running them here
    # Checkpoints save and restore the states of both random generators.
    random_states._get_cuda_rng_state = random_states._set_cuda_rng_state = lambda *args, **kwargs: None
    random_states.CudaRNGStatesTracker.fork = lambda *args, **kwargs: contextlib.nullcontext()
    token_dispatcher.maybe_move_tensor_to_cpu = _on_host


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Split sizes as the unmodified dispatcher wants them; it asks only tensors on a GPU."""
    del record_stream
    return tensor.tolist() if as_numpy and isinstance(tensor, torch.Tensor) else tensor
