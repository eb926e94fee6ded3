"""The batched solver on a GPU against `taot_planning` on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_up_routing import skewed_counts, two_level_problem

from taot_planning import PlanningOptions, check_plan, plan_layer
from taot_torch import plan_layers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_the_plans_of_fast_are_those_of_the_host() -> None:
    options = PlanningOptions(effort="fast")
    problems = [two_level_problem(skewed_counts(seed, num_ranks=8, num_experts=32)) for seed in range(12)]
    on_gpu = plan_layers(problems, options=options, device=torch.device("cuda"))
    for problem, plan in zip(problems, on_gpu, strict=True):
        check_plan(plan, problem)
        on_host = plan_layer(problem, options=options)
        np.testing.assert_array_equal(plan.guests_RK, on_host.guests_RK)
        np.testing.assert_array_equal(plan.quota_SRK, on_host.quota_SRK)
