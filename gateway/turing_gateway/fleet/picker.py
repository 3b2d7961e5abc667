"""Which engine gets a sequence: a pure function of the request and what is believed of engines.

Equal prefixes go to one engine (its prefix cache) unless that is clearly busier than the least
loaded: rendezvous hashing with bounded load (Mirrokni et al., arXiv:1608.01350). Gateways that see
the same names and Stats choose alike without talking.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from turing_gateway.fleet.view import EngineView

BOUND = 0.25
"""By how much of its capacity a home may be busier than the least loaded engine."""


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a sequence needs of an engine."""

    digest: str
    """Digest of the model's weights: engines that differ in it would give different tokens."""
    key: bytes
    """``home_key`` of the prompt."""
    pages: int
    """Footprint of prompt and max_tokens."""
    tokens: int
    """Prompt and max_tokens, against the engine's context."""
    adapter: str = ""
    mark: float = 1.0
    """Highest use, as a part of all pages, that leaves room for this lane."""
    avoid: frozenset[int] = frozenset()
    """Epochs of engines that refused this sequence before."""


def pick(views: Sequence[EngineView], want: Want) -> EngineView | None:
    """Return the engine for ``want``; ``None`` when none is ready for it.

    Without room anywhere it is the least loaded one, and admission judges.
    """
    able = [view for view in views if _able(view, want)]
    roomy = [view for view in able if _memory(view, want.pages) <= want.mark]
    if not roomy:
        return min(able, key=_by_load, default=None)
    least = min(_load(view) for view in roomy)
    home = max(roomy, key=lambda view: _rank(view, want.key))
    if _load(home) <= least + BOUND:
        return home
    return min(roomy, key=_by_load)


def _able(view: EngineView, want: Want) -> bool:
    info, limits = view.info, view.limits
    if not view.ready or info is None or limits is None or view.epoch in want.avoid:
        return False
    if info.digest != want.digest or want.tokens > limits.context:
        return False
    return not want.adapter or want.adapter in view.adapters


def _memory(view: EngineView, more: int = 0) -> float:
    total = view.limits.pages_total if view.limits else 0
    return (view.load + more) / max(total, 1)


def _load(view: EngineView) -> float:
    """Return the part of its capacity, memory or places in a step, that an engine has given."""
    places = view.limits.max_running if view.limits else 0
    return max(_memory(view), view.sequences / max(places, 1))


def _by_load(view: EngineView) -> tuple[float, str, str]:
    return _load(view), view.name, view.endpoint


def _rank(view: EngineView, key: bytes) -> tuple[bytes, str]:
    return hashlib.sha256(key + view.name.encode()).digest(), view.endpoint
