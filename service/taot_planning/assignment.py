"""Token assignment: how the tokens at hand are split over a given placement.

Every rank derives the split from the gathered counts by itself, so the rule is integer arithmetic with ties
broken by index: the same answer on every machine. It has three stages: how many tokens each copy of an expert takes
(`copy_loads`), the same again at these loads with the fewest node crossings (`node_crossings`), and whose tokens they
are (`token_sources`).
"""

from __future__ import annotations

from taot_planning.arrays import IntArray, read_only
from taot_planning.copies import list_copies
from taot_planning.copy_loads import NO_CAPS, load_copies
from taot_planning.kernel import kernel
from taot_planning.layer_problem import LayerProblem
from taot_planning.node_crossings import reduce_crossings
from taot_planning.token_sources import choose_sources


def assign_tokens(problem: LayerProblem, guests_RK: IntArray) -> IntArray:
    """Splits the tokens of a micro-batch over homes and guests.

    The placement may be older than the counts. What comes first:

    1. As few tokens as possible above token caps. A rank is above its cap only if its home tokens are, and if no
       guests can take enough of them. Such ranks are relieved in the order of their index; what then is left on each
       is its cap from here on.
    2. The smallest pace: every rank has at most its capacity at that pace (see `capacity`) and its cap. Where all
       speeds are alike and there are no caps, that is the smallest possible maximum load, in whole tokens.
    3. The fewest tokens in another node than their source, at the loads of ranks that come out of 1 and 2.
    4. Then each copy takes tokens of its own rank first.

    The rule ignores what a transfer of tokens costs beyond that.

    Args:
        problem: the counts at hand.
        guests_RK: expert in each guest slot, -1 where empty, as `check_guests` accepts it.
            Shape: [ranks, slots].

    Returns:
        Tokens of each source rank that go to each guest slot; the rest stays with the expert's home.
        Shape: [source ranks, ranks, slots].
    """
    return split_tokens(problem, guests_RK)[1]


def split_tokens(problem: LayerProblem, guests_RK: IntArray) -> tuple[IntArray, IntArray]:
    """Does what `assign_tokens` does.

    Returns:
        Tokens of each guest, and of each source rank that go to it.
        Shape: [ranks, slots], [source ranks, ranks, slots].
    """
    topology = problem.topology
    caps_R = NO_CAPS if topology.token_cap_R is None else topology.token_cap_R
    return split_copies(
        problem.counts_RE, problem.home_E, topology.nodes_R, topology.speeds_R, caps_R, read_only(guests_RK)
    )


@kernel
def split_copies(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    counts_RE: IntArray,
    home_E: IntArray,
    nodes_R: IntArray,
    speeds_R: IntArray,
    caps_R: IntArray,
    guests_RK: IntArray,
) -> tuple[IntArray, IntArray]:
    """Does what `split_tokens` does: one kernel, since ranks call it in the middle of a training step.

    All arrays are read-only; `caps_R` may be `NO_CAPS`.
    """
    copies_CF, tokens_RK = load_guests(counts_RE, home_E, nodes_R, speeds_R, caps_R, guests_RK)
    return tokens_RK, choose_sources(counts_RE, nodes_R, copies_CF, tokens_RK)


@kernel
def load_guests(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    counts_RE: IntArray,
    home_E: IntArray,
    nodes_R: IntArray,
    speeds_R: IntArray,
    caps_R: IntArray,
    guests_RK: IntArray,
) -> tuple[IntArray, IntArray]:
    """The copies of experts, see `list_copies`, and the tokens of each guest: all of `split_copies` but whose tokens.

    Shape: [copies, fields], [ranks, slots].
    """
    copies_CF = list_copies(home_E, nodes_R, guests_RK)
    tokens_RK = load_copies(counts_RE, home_E, copies_CF, speeds_R, caps_R, guests_RK.shape[1])
    return copies_CF, reduce_crossings(counts_RE, nodes_R, copies_CF, tokens_RK)
