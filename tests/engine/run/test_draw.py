"""Random numbers with golden values, and draws against a plain-Python statement of the rules."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turing_engine.run.draw import draw, draw_filtered, rank, uniform, uniforms, weigh

CPU = torch.device("cpu")

GOLDEN = {
    (0, 0): float.fromhex("0x1.2086089bfcf34p-2"),
    (0, 1): float.fromhex("0x1.9ae7fc7bd2eb5p-1"),
    (1, 0): float.fromhex("0x1.b9c847f90581ap-1"),
    (42, 7): float.fromhex("0x1.217db2ca00f4ep-1"),
    (-1, 0): float.fromhex("0x1.1140638c16042p-2"),
    (2**63 - 1, 8191): float.fromhex("0x1.b5df2fc123a98p-2"),
    (-(2**63), 1): float.fromhex("0x1.657ddc43c9c7cp-2"),
}


@pytest.mark.parametrize("key", GOLDEN)
def test_uniform_has_these_values_for_ever(key: tuple[int, int]) -> None:
    assert uniform(*key) == GOLDEN[key]


def test_uniform_takes_the_seed_modulo_two_to_the_64() -> None:
    assert uniform(-3, 5) == uniform(2**64 - 3, 5)


def test_uniform_fills_the_interval_evenly() -> None:
    counts = Counter(int(uniform(seed, at) * 16) for seed in range(64) for at in range(256))
    expected = 64 * 256 / 16
    chi_square = sum((counts[cell] - expected) ** 2 / expected for cell in range(16))
    assert chi_square < 40  # 15 degrees of freedom: p < 0.0005


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    for pairs in ([(s, 3) for s in range(2000)], [(3, at) for at in range(2000)]):
        values = uniforms([s for s, _ in pairs], [at for _, at in pairs], CPU)
        moved = values - values.mean()
        assert abs((moved[:-1] * moved[1:]).mean() / moved.var()) < 0.08


def test_rank_orders_by_value_then_by_id() -> None:
    logits = torch.tensor([[1.0, 3.0, -0.0, 3.0, 0.0, -math.inf, -5.0, 3.0]])
    assert rank(logits, 8).tolist() == [[1, 3, 7, 0, 2, 4, 6, 5]]
    assert rank(logits, 2).tolist() == [[1, 3]]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_rank_equals_a_stable_sort(values: list[float]) -> None:
    expected = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert rank(torch.tensor([values]), len(values)).tolist() == [expected]


def test_a_draw_that_rounds_up_to_the_total_takes_the_last_weight() -> None:
    weights = torch.tensor([[0.0, 0.1, 0.2, 0.0]], dtype=torch.float64)
    almost_one = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    assert draw(weights, almost_one).tolist() == [2]
    assert draw(weights, torch.zeros(1, dtype=torch.float64)).tolist() == [1]


def plain_choice(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, u: float
) -> int:
    """Return the drawn id by the rules, one step after the other."""
    best = max(logits)
    weights = [math.exp((value - best) / temperature) for value in logits]
    ranked = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
    ranked = [index for index in ranked if weights[index] >= min_p]
    if top_k > 0:
        ranked = ranked[:top_k]
    total, before = sum(weights[index] for index in ranked), 0.0
    kept: list[int] = []
    for index in ranked:
        if kept and before >= top_p * total and top_p < 1:
            break
        kept.append(index)
        before += weights[index]
    target, before = u * sum(weights[index] for index in kept), 0.0
    for index in sorted(kept):
        before += weights[index]
        if before > target:
            return index
    return max(kept)


quarters = st.integers(-40, 40).map(lambda value: value / 4)


@st.composite
def rows(draw_: st.DrawFn) -> tuple[list[float], float, int, float, float, float]:
    size = draw_(st.integers(2, 30))
    logits = draw_(st.lists(quarters, min_size=size, max_size=size))
    return (
        logits,
        draw_(st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.9])),
        draw_(st.integers(0, size + 3)),
        draw_(st.sampled_from([1e-9, 0.1, 0.5, 0.83, 0.97, 1.0])),
        draw_(st.sampled_from([0.0, 0.05, 0.31, 1.0])),
        draw_(st.floats(0, 1, exclude_max=True)),
    )


@settings(max_examples=400, deadline=None)
@given(rows())
def test_filtered_draws_follow_the_rules(
    row: tuple[list[float], float, int, float, float, float],
) -> None:
    logits, temperature, top_k, top_p, min_p, u = row
    table = torch.tensor([logits])
    weights = weigh(table, torch.tensor([temperature]).double(), torch.tensor([min_p]).double())
    point = torch.tensor([u], dtype=torch.float64)
    limit = torch.tensor([top_k if 0 < top_k < len(logits) else len(logits)])
    share = torch.tensor([top_p], dtype=torch.float64)
    token = draw_filtered(table, weights, limit, share, point)
    assert token.tolist() == [plain_choice(logits, temperature, top_k, top_p, min_p, u)]
    if top_p == 1 and int(limit) == len(logits):
        assert draw(weights, point).tolist() == token.tolist()


def test_a_flat_row_gets_its_whole_nucleus() -> None:
    """More tokens belong to the nucleus than are ranked at first."""
    size = 5000
    logits = torch.zeros(2, size)
    logits[1, :3] = 20.0
    weights = weigh(logits, torch.ones(2).double(), torch.zeros(2).double())
    limits, shares = torch.tensor([size, size]), torch.tensor([0.5, 0.5]).double()
    points = torch.tensor([1 - 2.0**-53, 1 - 2.0**-53]).double()
    tokens = draw_filtered(logits, weights, limits, shares, points)
    assert tokens.tolist() == [2499, 1]


def test_draws_are_distributed_as_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]])
    count = 4000
    weights = weigh(logits, torch.tensor([0.8]).double(), torch.zeros(1).double())
    points = uniforms([5] * count, range(count), CPU)
    drawn = draw(weights.expand(count, -1), points)
    expected = (logits[0] / 0.8).softmax(-1) * count
    chi_square = ((torch.bincount(drawn, minlength=5) - expected) ** 2 / expected).sum()
    assert chi_square < 20  # 4 degrees of freedom: p < 0.0005
