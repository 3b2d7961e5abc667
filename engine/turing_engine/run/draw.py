"""The arithmetic of sampling: one rule for every row, vectorised over the rows of a step.

Draws depend on (seed, position) and the row's logits only. Nothing else in the batch changes them,
so a resumed or preempted sequence continues with the tokens it would have had.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1

NUCLEUS_GUESS: Final = 512
"""Most likely tokens that are ranked first for ``top_p``; the whole row only if they fall short."""


def _splitmix64(x: int) -> int:
    """Finalise ``x`` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators")."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that decides the token at absolute ``position``.

    ``splitmix64(splitmix64(seed + 0x9E3779B97F4A7C15 * (position + 1)))`` in 64-bit arithmetic; the
    upper 53 bits become the fraction. ``seed`` is taken modulo 2^64.
    """
    x = (seed + _GOLDEN * (position + 1)) & _MASK
    return (_splitmix64(_splitmix64(x)) >> 11) * 2.0**-53


def rank(logits: Tensor, count: int) -> Tensor:
    """Return the ids ``[rows, count]`` of the largest logits, descending, ties by lower id.

    Each float32 becomes an integer of the same order with the inverted id below it, so that all
    keys differ and any top-k gives the one right answer.
    """
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    ordered = bits ^ ((bits >> 63) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    keys = (ordered << 32) | (0xFFFFFFFF - ids)
    return 0xFFFFFFFF - (keys.topk(count).values & 0xFFFFFFFF)


def weigh(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
    """Return float64 weights ``exp((l - max) / T)``, 0 where they are below ``min_p``.

    ``logits`` is ``[rows, vocab]``, the others ``[rows]``. The most likely token weighs 1, so a
    weight is the probability relative to it.
    """
    x = logits.to(torch.float64)
    x = x.sub_(x.amax(-1, keepdim=True)).div_(temperature[:, None]).exp_()
    return x.masked_fill_(x < min_p[:, None], 0.0)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return per row the first column whose inclusive cumulative sum exceeds ``u * total``.

    Where ``u * total`` rounds up to the total, it is the first column that reaches the total.

    ``weights`` is ``[rows, n]`` (float64, not all 0), ``uniforms`` ``[rows]``.
    """
    sums = weights.cumsum(-1)
    target = uniforms[:, None] * sums[:, -1:]
    target = target.minimum(sums[:, -1:].nextafter(sums.new_zeros(1)))
    return torch.searchsorted(sums, target, right=True)[:, 0]


def draw_filtered(
    logits: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, uniforms: Tensor
) -> Tensor:
    """Return the drawn id per row after ``top_k`` and ``top_p``.

    ``weights`` come from ``weigh``. ``top_k`` (int64, the vocabulary size for none) keeps exactly k
    tokens; ``top_p`` (float64) then keeps the smallest set of the most likely tokens whose share of
    what is left reaches it, at least one.
    """
    vocab = logits.shape[-1]
    bounds = [k for k in top_k.tolist() if k < vocab]
    count = min(vocab, max([NUCLEUS_GUESS, *bounds]))
    ids, kept, enough = _nucleus(logits, weights, top_k, top_p, count)
    tokens = _draw_by_id(ids, kept, uniforms)
    short = (~enough).nonzero()[:, 0]
    if len(short):
        rows = (logits[short], weights[short], top_k[short], top_p[short])
        ids, kept, _ = _nucleus(*rows, vocab)
        tokens[short] = _draw_by_id(ids, kept, uniforms[short])
    return tokens


def _nucleus(
    logits: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ranked ids ``[rows, count]``, their weights (0 = dropped), and whether these suffice.

    They suffice where the last of the ``count`` ranked tokens is dropped, or none is left behind.
    """
    ids = rank(logits, count)
    kept = weights.gather(-1, ids)
    places = torch.arange(count, device=ids.device)
    kept = kept.masked_fill(places >= top_k[:, None], 0.0)
    open_ended = top_k > count
    totals = torch.where(open_ended, weights.sum(-1), kept.sum(-1))
    # sums of different order round differently, so a share of 1 is no limit and not the total
    share = torch.where(top_p < 1, top_p * totals, torch.inf)
    before = kept.cumsum(-1) - kept
    kept = kept.masked_fill((places > 0) & (before >= share[:, None]), 0.0)
    return ids, kept, ~open_ended | (kept[:, -1] == 0)


def _draw_by_id(ids: Tensor, weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw among ``ids`` ``[rows, n]``, cumulating in the order of ids and not of ranks."""
    ids, order = ids.sort(-1)
    columns = draw(weights.gather(-1, order), uniforms)
    return ids.gather(-1, columns[:, None])[:, 0]


def uniforms(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """Return ``uniform`` of each pair as float64 ``[rows]``."""
    values = [uniform(seed, at) for seed, at in zip(seeds, positions, strict=True)]
    return torch.tensor(values, dtype=torch.float64, device=device)
