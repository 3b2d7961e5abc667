"""Attention of a ragged batch over pages, by torch's scaled dot-product kernels.

A step is cut into *groups* of equally long spans. Decodes (one token each) form one group, a padded
batch; each prefill chunk is a group of its own. What differs between layers is only the window, so
page indices and masks are made once per step and window, not once per layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from turing_engine.kv.codec import KVCodec
from turing_protocol.prefix import PAGE

Ints = NDArray[np.int64]

SPLIT_PAGES = 32
"""Padding of decodes, in pages, that is tolerated whatever its share."""

GROUP_PAGES = 2048
"""Most pages that one group of decodes reads, padding included; bounds the buffers."""


class Span(NamedTuple):
    """``length`` tokens of one sequence from position ``start`` on, and the sequence's pages."""

    start: int
    length: int
    pages: Sequence[int]

    @property
    def pages_used(self) -> int:
        """Pages that hold the sequence up to the end of this span."""
        return -(-(self.start + self.length) // PAGE)


class Group(NamedTuple):
    """Spans of equal ``length`` that are computed together: rows ``first:last`` of the batch."""

    first: int
    last: int
    length: int
    blocks: Tensor
    """KV blocks to read, ``[spans, kv_heads, pages]`` flattened."""
    mask: Tensor
    """Added to the scores, ``[spans, 1, length, keys]``."""


class Meta(NamedTuple):
    """What attention needs to know of a step: where to write, and its groups per window."""

    lines: Tensor
    groups: dict[int, list[Group]]


class PagedAttention:
    """Writes a step's keys and values to pages and attends to all earlier ones.

    ``windows`` has the window per layer, 0 for none. Spans must come in the order of the batch's
    rows, longer ones than one token first.
    """

    def __init__(
        self, codec: KVCodec, *, kv_heads: int, scale: float, windows: Sequence[int]
    ) -> None:
        self._codec = codec
        self._kv_heads = kv_heads
        self._scale = scale
        self._windows = tuple(windows)

    def prepare(self, spans: Sequence[Span], dtype: torch.dtype, device: torch.device) -> Meta:
        """Build the indices and masks of one step."""
        lines = np.concatenate([self._span_lines(span) for span in spans])
        cuts = _cut(spans)
        groups = {
            window: [self._group(spans, cut, window, dtype, device) for cut in cuts]
            for window in set(self._windows)
        }
        return Meta(torch.from_numpy(lines).to(device), groups)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, meta: Meta) -> Tensor:
        """Return the attention output ``[n, heads * d]`` for ``q`` ``[n, heads, d]``.

        ``k`` and ``v`` are ``[n, kv_heads, d]`` and are stored first, so that a chunk reads its own
        keys as every later one will.
        """
        self._codec.write(layer, meta.lines, k, v)
        groups = meta.groups[self._windows[layer]]
        return torch.cat([self._attend_group(layer, q, group) for group in groups])

    def _attend_group(self, layer: int, q: Tensor, group: Group) -> Tensor:
        heads, head_dim = q.shape[1:]
        keys, values = (
            cache.view(-1, self._kv_heads, group.mask.shape[-1], head_dim)
            for cache in self._codec.read(layer, group.blocks)
        )
        q = q[group.first : group.last]
        if group.length == 1:  # the heads that share a key head are the rows of one product
            q = q.view(-1, self._kv_heads, heads // self._kv_heads, head_dim)
            out = self._sdpa(q, keys, values, group.mask)
            return out.reshape(-1, heads * head_dim)
        q = q.view(group.length, self._kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        keys, values = (
            cache[0].unsqueeze(1).expand(-1, q.shape[1], -1, -1) for cache in (keys, values)
        )
        out = self._sdpa(q, keys, values, group.mask)
        return out.permute(2, 0, 1, 3).reshape(group.length, -1)

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask, scale=self._scale)

    def _span_lines(self, span: Span) -> Ints:
        positions = np.arange(span.start, span.start + span.length)
        table = np.asarray(span.pages[: span.pages_used], np.int64)
        blocks = table[positions // PAGE, None] * self._kv_heads + np.arange(self._kv_heads)
        return (blocks * PAGE + positions[:, None] % PAGE).ravel()

    def _group(
        self,
        spans: Sequence[Span],
        cut: slice,
        window: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Group:
        members = spans[cut]
        length = members[0].length
        starts = np.array([span.start for span in members])
        firsts = np.maximum(0, starts + 1 - window) // PAGE if window else np.zeros_like(starts)
        table = _page_table(members, firsts.tolist())
        blocks = table[:, None, :] * self._kv_heads + np.arange(self._kv_heads)[:, None]
        mask = _mask(starts, firsts * PAGE, length, table.shape[1] * PAGE, window, dtype)
        before = sum(span.length for span in spans[: cut.start])
        return Group(
            first=before,
            last=before + len(members) * length,
            length=length,
            blocks=torch.from_numpy(blocks.ravel()).to(device),
            mask=mask.to(device),
        )


def _page_table(spans: Sequence[Span], firsts: Sequence[int]) -> Ints:
    """Return the pages from ``firsts[i]`` on that span ``i`` uses, padded with page 0."""
    parts = [span.pages[first : span.pages_used] for span, first in zip(spans, firsts, strict=True)]
    table = np.zeros((len(parts), max(map(len, parts))), np.int64)
    for row, pages in enumerate(parts):
        table[row, : len(pages)] = pages
    return table


def _cut(spans: Sequence[Span]) -> list[slice]:
    """Return the groups as slices of ``spans``: each chunk alone, all decodes together.

    Decodes are split, longest first, only where padding the short ones to the longest would more
    than double what is read, or where the group would outgrow ``GROUP_PAGES``.
    """
    chunks = sum(span.length > 1 for span in spans)
    cuts = [slice(index, index + 1) for index in range(chunks)]
    start = chunks
    sizes = [span.pages_used for span in spans]
    while start < len(spans):
        rest = sizes[start:]
        padding = len(rest) * rest[0] - sum(rest)
        stop = len(spans)
        if padding > max(SPLIT_PAGES, sum(rest)):
            stop = start + sum(2 * size >= rest[0] for size in rest)
        stop = min(stop, start + max(1, GROUP_PAGES // rest[0]))
        cuts.append(slice(start, stop))
        start = stop
    return cuts


def _mask(
    starts: Ints, bases: Ints, length: int, keys: int, window: int, dtype: torch.dtype
) -> Tensor:
    """Return 0 where a query sees a key and -inf elsewhere, ``[spans, 1, length, keys]``.

    Queries of span ``i`` are at ``starts[i] …``, its keys at ``bases[i] …``.
    """
    queries = torch.from_numpy(starts[:, None] + np.arange(length))[:, None, :, None]
    at = torch.from_numpy(bases[:, None] + np.arange(keys))[:, None, None, :]
    hidden = at > queries
    if window:
        hidden |= at <= queries - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
