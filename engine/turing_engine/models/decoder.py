"""The decoder that computes every family, and how it is filled with weights."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from turing_engine.models.layers import (
    AnyLinear,
    Attend,
    DecoderLayer,
    FeedForward,
    RMSNorm,
    SelfAttention,
    make_linear,
)
from turing_engine.models.spec import DecoderSpec, Rope
from turing_engine.models.weights import Weights
from turing_kernels import ref


class Decoder:
    """A causal decoder over a flat batch of tokens; attention is the caller's."""

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        embedding: Tensor,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: AnyLinear,
    ) -> None:
        self.spec = spec
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rope = self._frequencies(spec.rope)
        self._local_rope = self._frequencies(spec.local_rope)

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and hidden states."""
        return self._embedding.dtype

    def forward(self, ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """Return the logits ``[len(rows), vocab]`` (float32) behind the tokens at ``rows``.

        ``ids`` and ``positions`` are ``[n]``, ``rows`` indexes them; all are int64.
        """
        x = functional.embedding(ids, self._embedding)
        if self.spec.embedding_scale != 1.0:
            x = x * self.spec.embedding_scale
        rotary = self._rotary(self._rope, positions)
        local_rotary = self._rotary(self._local_rope, positions)
        for index, (layer, window) in enumerate(zip(self._layers, self.spec.windows, strict=True)):
            x = layer(x, index, local_rotary if window else rotary, attend)
        return self._logits(x[rows]) if len(rows) else x.new_empty(0, self.spec.vocab_size)

    def _frequencies(self, rope: Rope) -> Tensor:
        frequencies = ref.rope_frequencies(self.spec.head_dim, rope.theta, rope.divisors)
        return frequencies.to(self._embedding.device)

    def _rotary(self, frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = ref.rope_table(positions, frequencies)
        return cos.to(self.dtype), sin.to(self.dtype)

    def _logits(self, x: Tensor) -> Tensor:
        logits = self._head(self._norm(x)).float()
        cap = self.spec.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def load_decoder(weights: Weights, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Read all of ``weights`` into memory as ``dtype`` (norms as float32) on ``device``."""
    loader = _Loader(weights, dtype, device)
    spec = weights.spec
    embedding = loader.matrix("embed")
    return Decoder(
        spec,
        embedding=embedding,
        layers=[loader.layer(f"layers.{index}") for index in range(spec.layers)],
        norm=loader.norm("norm"),
        head=make_linear(embedding if spec.tied_head else loader.matrix("head")),
    )


class _Loader:
    """Builds layers out of tensors; products with the same input are fused into one matrix."""

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self._weights = weights
        self._spec = weights.spec
        self._dtype = dtype
        self._device = device

    def matrix(self, name: str) -> Tensor:
        return self._weights.tensor(f"{name}.weight").to(self._device, self._dtype)

    def norm(self, name: str) -> RMSNorm:
        weight = self._weights.tensor(f"{name}.weight").to(self._device, torch.float32)
        return RMSNorm(weight + self._spec.norm_offset, self._spec.norm_eps)

    def linear(self, *names: str, bias: bool) -> AnyLinear:
        weight = torch.cat([self.matrix(name) for name in names])
        if not bias:
            return make_linear(weight)
        biases = torch.cat([self._weights.tensor(f"{name}.bias") for name in names])
        return make_linear(weight, biases.to(self._device, self._dtype))

    def layer(self, prefix: str) -> DecoderLayer:
        return DecoderLayer(
            self._attention(prefix),
            self._ffn(prefix),
            (self.norm(f"{prefix}.attn_norm"), self.norm(f"{prefix}.ffn_norm")),
            self._pair(prefix, "post_attn_norm", "post_ffn_norm", self._spec.post_norms),
        )

    def _pair(
        self, prefix: str, first: str, second: str, present: bool
    ) -> tuple[RMSNorm, RMSNorm] | None:
        return (
            (self.norm(f"{prefix}.{first}"), self.norm(f"{prefix}.{second}")) if present else None
        )

    def _attention(self, prefix: str) -> SelfAttention:
        spec = self._spec
        names = [f"{prefix}.{part}" for part in ("q", "k", "v")]
        return SelfAttention(
            self.linear(*names, bias=spec.qkv_bias),
            self.linear(f"{prefix}.o", bias=spec.output_bias),
            self._pair(prefix, "q_norm", "k_norm", spec.qk_norm),
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
        )

    def _ffn(self, prefix: str) -> FeedForward:
        bias = self._spec.ffn_bias
        gate_up = self.linear(f"{prefix}.gate", f"{prefix}.up", bias=bias)
        return FeedForward(gate_up, self.linear(f"{prefix}.down", bias=bias), self._spec.activation)
