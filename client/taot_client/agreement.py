"""Whether the ranks of a group have been started alike: compared once, before anything depends on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch.distributed as dist

from taot_client.groups import all_gather_text, peers_named


def check_agreement(group: dist.ProcessGroup, facts: Mapping[str, object], *, size: int) -> None:
    """Compares named facts among the ranks. Collective.

    Args:
        group: a gloo group.
        facts: JSON values that must be equal on all ranks, by field name.
        size: ranks in the group.

    Raises:
        ValueError: on every rank, naming the first field that differs and what each rank has.
    """
    with peers_named("the start of the agent"):
        texts = all_gather_text(group, json.dumps(facts, sort_keys=True), size=size)
    gathered = [json.loads(text) for text in texts]
    for field in sorted({name for each in gathered for name in each}):
        values = [each.get(field, "<absent>") for each in gathered]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
            raise ValueError(
                f"the ranks disagree about {field}: {listed}; start every rank with the same model and options"
            )


@contextmanager
def share_refusals(group: dist.ProcessGroup, *, size: int) -> Iterator[None]:
    """Runs checks of this rank alone and lets all ranks know how they ended. Collective.

    Raises:
        ValueError: on every rank, if the checks of any rank raised one; with its own error where it was raised.
    """
    own: ValueError | None = None
    try:
        yield
    except ValueError as error:
        own = error
    with peers_named("a check that all ranks share"):
        texts = all_gather_text(group, str(own) or repr(own) if own is not None else "", size=size)
    if own is not None:
        raise own
    for rank, text in enumerate(texts):
        if text:
            raise ValueError(f"rank {rank} refuses to start: {text}")
