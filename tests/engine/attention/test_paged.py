"""Paged attention of ragged batches against the one-query-at-a-time reference."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turing_engine.attention.paged import GROUP_PAGES, PagedAttention, Span
from turing_engine.kv.codec import KVSpec
from turing_engine.kv.plain import PlainPages
from turing_kernels import ref
from turing_protocol.prefix import PAGE

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
SPEC = KVSpec(layers=2, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=torch.float32)
SCALE = 0.3


class Sequences:
    """Random keys, values and queries of some sequences in shuffled pages."""

    def __init__(self, lengths: Sequence[int], window: int) -> None:
        torch.manual_seed(sum(lengths) + window)
        total = sum(-(-length // PAGE) for length in lengths)
        order = torch.randperm(total + 2).tolist()
        self.window = window
        self.tables = [[order.pop() for _ in range(-(-length // PAGE))] for length in lengths]
        self.pages = PlainPages(total + 2, SPEC, CPU)
        self.attention = PagedAttention(
            self.pages, kv_heads=KV_HEADS, scale=SCALE, windows=(0, window)
        )
        self.q, self.k, self.v = (
            [torch.randn(length, heads, HEAD_DIM) for length in lengths]
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )

    def attend(self, layer: int, parts: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """Attend the ``(sequence, start, length)`` parts in one batch."""
        spans = [Span(start, length, self.tables[which]) for which, start, length in parts]
        meta = self.attention.prepare(spans, torch.float32, CPU)
        q, k, v = (
            torch.cat([values[which][start : start + n] for which, start, n in parts])
            for values in (self.q, self.k, self.v)
        )
        return self.attention.attend(layer, q, k, v, meta)

    def expected(self, layer: int, parts: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """Return what the reference makes of the same parts."""
        rows = []
        for which, start, length in parts:
            keys, values = (_one_page(cache[which]) for cache in (self.k, self.v))
            rows.append(
                ref.paged_attention(
                    self.q[which][start : start + length],
                    keys,
                    values,
                    [[0]] * length,
                    range(start, start + length),
                    scale=SCALE,
                    window=self.window if layer else 0,
                )
            )
        return torch.cat(rows).flatten(1)


def _one_page(cache: torch.Tensor) -> torch.Tensor:
    return cache.transpose(0, 1)[None]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Lengths of sequences, how much of each was computed before, and a window."""
    lengths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=6))
    before = [draw(st.integers(0, length - 1)) for length in lengths]
    return lengths, before, draw(st.integers(1, 150))


@settings(deadline=None, max_examples=60)
@given(batches())
def test_equals_the_reference(batch: tuple[list[int], list[int], int]) -> None:
    lengths, before, window = batch
    sequences = Sequences(lengths, window)
    history = [(which, 0, start) for which, start in enumerate(before) if start > 1]
    history += [(which, 0, start) for which, start in enumerate(before) if start == 1]
    rest = [(i, start, lengths[i] - start) for i, start in enumerate(before)]
    parts = [part for part in rest if part[2] > 1]
    parts += sorted((p for p in rest if p[2] == 1), key=lambda part: -part[1])
    for layer in (0, 1):
        if history:
            sequences.attend(layer, history)
        out = sequences.attend(layer, parts)
        torch.testing.assert_close(out, sequences.expected(layer, parts), atol=1e-5, rtol=1e-4)


def test_very_uneven_decodes_are_split_to_bound_the_padding() -> None:
    lengths = [3000] + [10] * 40
    sequences = Sequences(lengths, 50)
    history = [(which, 0, length - 1) for which, length in enumerate(lengths)]
    parts = [(which, length - 1, 1) for which, length in enumerate(lengths)]
    spans = [Span(start, 1, sequences.tables[which]) for which, start, _ in parts]
    meta = sequences.attention.prepare(spans, torch.float32, CPU)
    assert [(group.first, group.last) for group in meta.groups[0]] == [(0, 1), (1, 41)]
    sequences.attend(0, history)
    torch.testing.assert_close(
        sequences.attend(0, parts), sequences.expected(0, parts), atol=1e-5, rtol=1e-4
    )


def test_a_group_of_decodes_is_bounded() -> None:
    attention = Sequences([1], 1).attention
    spans = [Span(64 * 100, 1, range(101))] * 50
    meta = attention.prepare(spans, torch.float32, CPU)
    sizes = [group.mask.shape[0] for group in meta.groups[0]]
    assert sizes == [20, 20, 10]
    assert max(sizes) * 101 <= GROUP_PAGES


def test_even_decodes_are_one_group_and_a_window_reads_only_its_pages() -> None:
    sequences = Sequences([700, 650, 600], 65)
    spans = [
        Span(599 + at, 1, table) for at, table in zip((100, 50, 0), sequences.tables, strict=True)
    ]
    meta = sequences.attention.prepare(spans, torch.float32, CPU)
    everything, windowed = meta.groups[0], meta.groups[65]
    assert len(everything) == len(windowed) == 1
    assert everything[0].mask.shape == (3, 1, 1, 11 * PAGE)
    assert windowed[0].mask.shape == (3, 1, 1, 2 * PAGE)


@pytest.mark.parametrize("layer", [0, 1])
def test_other_layers_and_sequences_are_left_alone(layer: int) -> None:
    sequences = Sequences([100, 100], 20)
    sequences.attend(layer, [(0, 0, 100)])
    before = [sequences.pages.read(at, torch.arange(12))[0].clone() for at in (0, 1)]
    sequences.attend(layer, [(1, 0, 100)])
    after = [sequences.pages.read(at, torch.arange(12))[0].clone() for at in (0, 1)]
    assert torch.equal(before[1 - layer], after[1 - layer])
    blocks = torch.tensor([page * KV_HEADS for page in sequences.tables[0]])
    first = sequences.pages.read(layer, blocks)[0]
    assert torch.equal(first[:100], sequences.k[0][:, 0])
