"""Ranks plan for themselves and must agree to the last bit, whatever process and machine they run on."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from made_up_routing import random_problem, skewed_counts, two_level_problem

from taot_planning import ALGORITHMS, LayerProblem, plan_layer

FOLDER = Path(__file__).parent


def run_script(name: str, *arguments: str, **environment: str) -> list[str]:
    """What a script of this folder prints, run in a process of its own."""
    path = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, str(FOLDER / name), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def digest_in_a_process(num_threads: int, **environment: str) -> tuple[str, int, int]:
    """The digest, the kernels compiled by the warm-up, and those compiled after it."""
    digest, warmed, late = run_script("plan_digest.py", str(num_threads), **environment)
    return digest, int(warmed), int(late)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_kernels_give_the_bits_of_python_and_numpy() -> None:
    """The kernels' source is their reference: interpreted, not compiled, it must give the same plans."""
    assert run_script("kernel_digest.py", NUMBA_DISABLE_JIT="1") == run_script("kernel_digest.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hash_seeds_and_threads_do_not_change_a_bit() -> None:
    runs = [(str(seed), 1 + seed % 2) for seed in range(5)]
    digests = {digest_in_a_process(threads, PYTHONHASHSEED=seed)[0] for seed, threads in runs}
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cpu_without_wide_or_fused_instructions_gives_the_same_bits(tmp_path: Path) -> None:
    """The plainest CPU of this architecture, as far as the compiler is concerned, with a cache of its own."""
    plain = digest_in_a_process(1, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(tmp_path))
    assert plain[0] == digest_in_a_process(1)[0]


def test_nothing_compiles_after_the_warm_up() -> None:
    """A kernel that meets an unusual array for the first time in a training step would stall it for seconds."""
    _, warmed, late = digest_in_a_process(1)
    assert warmed > 0
    assert late == 0


def test_threads_that_plan_at_once_get_what_one_thread_gets() -> None:
    problems = [random_problem(seed) for seed in range(100)]
    barrier = Barrier(4)

    def plan_all(_: int) -> list[bytes]:
        barrier.wait(60)
        return [
            plan_layer(problem, algorithm=algorithm).quota_SRK.tobytes()
            for problem in problems
            for algorithm in sorted(ALGORITHMS)
        ]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(plan_all, range(4))
    assert all(other == first for other in others)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize(
    "convert",
    [
        lambda counts_RE: counts_RE.astype(np.int32),
        lambda counts_RE: counts_RE.astype(np.float32),
        lambda counts_RE: counts_RE.astype(np.float64),
        lambda counts_RE: counts_RE.tolist(),
        np.asfortranarray,
        lambda counts_RE: np.repeat(counts_RE, 2, axis=1)[:, ::2],
    ],
    ids=["int32", "float32", "float64", "lists", "columns first", "strided"],
)
def test_how_the_counts_are_stored_does_not_matter(algorithm: str, convert: Any) -> None:
    problem = two_level_problem(skewed_counts(4, num_ranks=8, num_experts=32))
    stored = LayerProblem(counts_RE=convert(problem.counts_RE), home_E=problem.home_E, topology=problem.topology)
    plan, other = (plan_layer(layer, algorithm=algorithm) for layer in (problem, stored))
    assert np.array_equal(plan.guests_RK, other.guests_RK)
    assert np.array_equal(plan.quota_SRK, other.quota_SRK)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_equal_experts_and_ranks_are_told_apart_by_their_index_alone(algorithm: str) -> None:
    """Swapping two experts that are equal in everything changes nothing."""
    counts_RE = np.repeat(skewed_counts(6, num_ranks=4, num_experts=8), 2, axis=1)
    swapped_RE = counts_RE.reshape(4, 8, 2)[:, :, ::-1].reshape(4, 16)
    plan, other = (plan_layer(two_level_problem(counts), algorithm=algorithm) for counts in (counts_RE, swapped_RE))
    assert np.array_equal(plan.guests_RK, other.guests_RK)
    assert np.array_equal(plan.quota_SRK, other.quota_SRK)
