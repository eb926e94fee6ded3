"""Views of home weights are kept as long as the memory is the same, and no longer."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from taot_client.home_experts import HomeViews
from taot_client.moe_layer import GatedExperts


def experts() -> GatedExperts:
    """Two of them."""
    return GatedExperts(dim=2, hidden_dim=3, experts=np.arange(2), seed=0)


def test_what_is_read_is_what_the_weights_are_now() -> None:
    home = experts()
    views = HomeViews(home, are_kept=True)
    before = views.all()[1]
    with torch.no_grad():
        home.w_up += 1.0
    assert all(a is b for a, b in zip(views.all()[1], before, strict=True))
    assert torch.equal(views.all()[1][1], home.w_up[1])
    home.w_up.data = home.w_up.data + 1.0  # other memory
    assert torch.equal(views.all()[1][1], home.w_up[1])
    home.load_state_dict({name: value + 1.0 for name, value in home.state_dict().items()}, assign=True)
    assert torch.equal(views.all()[1][1], home.w_up[1])


def test_where_memory_must_not_be_held_views_are_made_each_time() -> None:
    home = experts()
    views = HomeViews(home, are_kept=False)
    assert views.all()[0][0] is not views.all()[0][0]
    assert torch.equal(views.all()[0][0], home.w_gate[0])
    kept = weakref.ref(views.all()[0][0])
    assert kept() is None, "a view holds the memory of all experts"
