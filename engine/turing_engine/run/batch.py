"""Plan to tensors: one flat batch for all rows of a step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from turing_engine.attention.paged import Span
from turing_engine.plan.plan import Chunk
from turing_protocol.prefix import PAGE


class Batch(NamedTuple):
    """The tokens of a step, one row each: chunks first, then decodes with the longest first.

    ``ids`` and ``positions`` are ``[n]``; ``rows`` are the rows whose logits are sampled and
    ``sampled`` the chunks (as indices into the plan) that they belong to.
    """

    ids: Tensor
    positions: Tensor
    spans: list[Span]
    rows: Tensor
    sampled: list[int]


def build_batch(chunks: Sequence[Chunk], device: torch.device) -> Batch:
    """Lay out ``chunks`` (at least one) for the decoder and for attention."""
    order = sorted(range(len(chunks)), key=lambda index: _place(chunks[index]))
    ordered = [chunks[index] for index in order]
    ids = np.fromiter((token for chunk in ordered for token in chunk.ids), np.int64)
    lengths = np.array([len(chunk.ids) for chunk in ordered])
    ends = lengths.cumsum()
    shifts = np.array([chunk.start for chunk in ordered]) - (ends - lengths)
    positions = np.arange(len(ids)) + shifts.repeat(lengths)
    sampling = [chunk.sample for chunk in ordered]
    return Batch(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        spans=[Span(chunk.start, len(chunk.ids), chunk.pages) for chunk in ordered],
        rows=torch.from_numpy(ends[sampling] - 1).to(device),
        sampled=[index for index, sample in zip(order, sampling, strict=True) if sample],
    )


def check_chunks(chunks: Sequence[Chunk], *, vocab_size: int, pages: int, slots: int) -> None:
    """Raise ``ValueError`` naming the slot of a chunk that points outside of what there is."""
    for chunk in chunks:
        end = chunk.start + len(chunk.ids)
        if not 0 <= chunk.slot < slots:
            raise ValueError(f"slot {chunk.slot} is not one of {slots}")
        if chunk.start < 0 or not chunk.ids:
            raise ValueError(f"slot {chunk.slot}: a chunk of {len(chunk.ids)} at {chunk.start}")
        if not 0 <= min(chunk.ids) <= max(chunk.ids) < vocab_size:
            raise ValueError(f"slot {chunk.slot}: a token is not in the vocabulary")
        if len(chunk.pages) * PAGE < end:
            raise ValueError(f"slot {chunk.slot}: {len(chunk.pages)} pages for {end} tokens")
        if not 0 <= min(chunk.pages) <= max(chunk.pages) < pages:
            raise ValueError(f"slot {chunk.slot}: a page is not one of {pages}")


def _place(chunk: Chunk) -> tuple[bool, int]:
    decode = len(chunk.ids) == 1
    return decode, -chunk.start if decode else 0
