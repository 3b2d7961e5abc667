"""The golden implementations: what every other kernel of an operation is tested against.

They run on any torch device. All but ``paged_attention`` are also what the torch decoder runs;
``paged_attention`` is written for clarity, one query at a time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x / rms(x) * weight`` over the last dimension, computed in float32.

    ``x`` is ``[…, d]`` of any floating type and keeps it; ``weight`` is ``[d]`` in float32.
    Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    return functional.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def rope_frequencies(head_dim: int, theta: float, divisors: Sequence[float] = ()) -> Tensor:
    """Return the angle per position of each of the ``head_dim / 2`` pairs, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    return frequencies / torch.tensor(divisors) if divisors else frequencies


def rope_table(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin ``[n, 1, d]`` of ``positions`` ``[n]`` for ``rope``.

    The first half of ``sin`` is negated, so that turning is one product with the swapped halves.
    """
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of ``x`` ``[n, heads, d]`` by the angles of ``rope_table``.

    Source: Su et al., arXiv:2104.09864, in the half-split order of GPT-NeoX.
    """
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` for ``gate_up`` ``[…, 2d]``. Source: Shazeer, arXiv:2002.05202."""
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    """Return ``gelu_tanh(gate) * up`` for ``gate_up`` ``[…, 2d]``."""
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    page_tables: Sequence[Sequence[int]],
    positions: Sequence[int],
    *,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Attend each query to the keys at its own and earlier positions.

    ``queries`` is ``[n, heads, d]``; ``keys`` and ``values`` are ``[pages, kv_heads, page, d]``.
    Query ``i`` is at ``positions[i]`` of the sequence whose pages are ``page_tables[i]``; with a
    ``window`` it sees only that many keys, its own included. Returns ``[n, heads, d]``.
    """
    rows = []
    for query, table, position in zip(queries, page_tables, positions, strict=True):
        first = max(0, position + 1 - window) if window else 0
        seen = [cache[list(table)].transpose(1, 2).flatten(0, 1) for cache in (keys, values)]
        key, value = (cache[first : position + 1].transpose(0, 1) for cache in seen)
        grouped = query.view(key.shape[0], -1, query.shape[-1])
        scores = (grouped @ key.transpose(1, 2) * scale).softmax(-1, torch.float32)
        rows.append((scores.to(value.dtype) @ value).flatten(0, 1))
    return torch.stack(rows)
