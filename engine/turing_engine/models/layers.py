"""The parts of a decoder. They act on a flat batch ``[n, …]``: one row per token of a step."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from turing_kernels import ref

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``(layer, q [n, heads, d], k [n, kv_heads, d], v) -> [n, heads * d]``; stores k and v."""

AnyLinear = Callable[[Tensor], Tensor]

RotaryTable = tuple[Tensor, Tensor]

PACK_ROWS: Final = 32
"""Batch size that packed weights are laid out for; measured good from 1 to 512 rows."""

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": ref.swiglu,
    "gelu_tanh": ref.geglu,
}


class Linear:
    """``x @ weight.T + bias`` with ``weight`` ``[out, in]``."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class PackedLinear:
    """A ``Linear`` whose float32 weight is kept in oneDNN's blocked layout, for the CPU.

    At 2 to 64 rows, where decoding lives, it takes about half the time of the plain layout.
    """

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear | PackedLinear:
    """Return the product with ``weight`` that is fastest for its type and device."""
    on_cpu = weight.device.type == "cpu" and torch._C._has_mkldnn
    if on_cpu and weight.dtype == torch.float32:
        return PackedLinear(weight, bias)
    return Linear(weight, bias)


class RMSNorm:
    """RMS normalisation of the last dimension; ``weight`` stays float32 in any model type."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ref.rms_norm(x, self.weight, self.eps)


class SelfAttention:
    """Grouped-query attention with rotary positions and, in some families, q and k norms."""

    __slots__ = ("head_dim", "heads", "k_norm", "kv_heads", "o", "q_norm", "qkv")

    def __init__(
        self,
        qkv: AnyLinear,
        o: AnyLinear,
        norms: tuple[RMSNorm, RMSNorm] | None,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        self.qkv = qkv
        self.o = o
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if norms:
            self.q_norm, self.k_norm = norms
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim

    def __call__(self, x: Tensor, index: int, rotary: RotaryTable, attend: Attend) -> Tensor:
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        qk, v = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        if self.q_norm and self.k_norm:
            q, k = qk[:, : self.heads], qk[:, self.heads :]
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), 1)
        qk = ref.rope(qk, *rotary)
        return self.o(attend(index, qk[:, : self.heads], qk[:, self.heads :], v))


class FeedForward:
    """Gated feed-forward: ``down(activation(gate(x)) * up(x))``."""

    __slots__ = ("activation", "down", "gate_up")

    def __init__(self, gate_up: AnyLinear, down: AnyLinear, activation: str) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate_up(x)))


class DecoderLayer:
    """One block: attention and feed-forward, each normed, each added to the residual."""

    __slots__ = ("attention", "attn_norm", "ffn", "ffn_norm", "post_attn_norm", "post_ffn_norm")

    def __init__(
        self,
        attention: SelfAttention,
        ffn: FeedForward,
        norms: tuple[RMSNorm, RMSNorm],
        post_norms: tuple[RMSNorm, RMSNorm] | None,
    ) -> None:
        self.attention = attention
        self.ffn = ffn
        self.attn_norm, self.ffn_norm = norms
        self.post_attn_norm: RMSNorm | None = None
        self.post_ffn_norm: RMSNorm | None = None
        if post_norms:
            self.post_attn_norm, self.post_ffn_norm = post_norms

    def __call__(self, x: Tensor, index: int, rotary: RotaryTable, attend: Attend) -> Tensor:
        """Return the residual stream ``x`` ``[n, hidden]`` behind this block; ``x`` is reused."""
        y = self.attention(self.attn_norm(x), index, rotary, attend)
        x = x.add_(self.post_attn_norm(y) if self.post_attn_norm else y)
        y = self.ffn(self.ffn_norm(x))
        return x.add_(self.post_ffn_norm(y) if self.post_ffn_norm else y)
