"""The golden operations against their definitions, in float64."""

import math

import pytest
import torch

from turing_kernels import ref


def test_rms_norm() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 16), torch.randn(16)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(ref.rms_norm(x, weight, 1e-5).double(), exact, atol=1e-6, rtol=1e-5)
    half = ref.rms_norm(x.bfloat16(), weight, 1e-5)
    assert half.dtype == torch.bfloat16


def test_rope_turns_each_pair_by_its_angle() -> None:
    x = torch.randn(2, 3, 8)
    frequencies = ref.rope_frequencies(8, 100.0, (1.0, 2.0, 1.0, 4.0))
    turned = ref.rope(x, *ref.rope_table(torch.tensor([0, 9]), frequencies))
    assert torch.equal(turned[0], x[0])
    for pair, divisor in enumerate((1.0, 2.0, 1.0, 4.0)):
        angle = 9 * 100.0 ** (-2 * pair / 8) / divisor
        first, second = x[1, :, pair], x[1, :, pair + 4]
        real = first * math.cos(angle) - second * math.sin(angle)
        imaginary = first * math.sin(angle) + second * math.cos(angle)
        torch.testing.assert_close(turned[1, :, pair], real)
        torch.testing.assert_close(turned[1, :, pair + 4], imaginary)


def test_gated_activations() -> None:
    gate, up = torch.randn(2, 4, 8, dtype=torch.float64)
    both = torch.cat((gate, up), -1)
    torch.testing.assert_close(ref.swiglu(both), gate / (1 + (-gate).exp()) * up)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(ref.geglu(both), gate / 2 * (1 + inner.tanh()) * up)


@pytest.mark.parametrize("window", [0, 3])
def test_paged_attention_is_softmax_over_what_a_query_sees(window: int) -> None:
    torch.manual_seed(1)
    keys, values = torch.randn(2, 4, 1, 5, 8, dtype=torch.float64)  # 4 pages of 5 tokens, 1 head
    query = torch.randn(1, 2, 8, dtype=torch.float64)
    out = ref.paged_attention(query, keys, values, [[2, 0]], [7], scale=0.5, window=window)
    seen = slice(5 if window else 0, 8)
    key = torch.cat((keys[2, 0], keys[0, 0]))[seen]
    value = torch.cat((values[2, 0], values[0, 0]))[seen]
    for head in (0, 1):
        weights = (0.5 * key @ query[0, head]).exp()
        expected = (weights / weights.sum()) @ value
        torch.testing.assert_close(out[0, head], expected, atol=1e-6, rtol=1e-6)
