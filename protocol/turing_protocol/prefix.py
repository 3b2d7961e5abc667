"""Hashes of 64-token pages, equal on both sides of the wire.

The key of a page is SHA-256(parent || its tokens as little-endian u32), cut to 16 bytes; the parent
of the first page is the salt. The salt holds everything that changes K/V values or may not be
shared, so two requests share a page exactly when its contents are interchangeable.
"""

import hashlib
from array import array
from collections.abc import Sequence

import msgspec

PAGE = 64
"""Tokens per KV page."""

HOME_PAGES = 4
"""Leading pages that decide which engine is a prompt's home."""

_KEY_BYTES = 16


def salt(
    *,
    model: str,
    adapter: str = "",
    sparsity: float = 0.0,
    codec: str = "plain",
    tenant: str = "",
) -> bytes:
    """Return the root of a page chain.

    ``model`` and ``adapter`` are digests of weights, never names: a reloaded one differs.
    """
    root = msgspec.msgpack.encode([1, model, adapter, sparsity, codec, tenant])
    return hashlib.sha256(root).digest()[:_KEY_BYTES]


def page_hashes(root: bytes, tokens: Sequence[int], *, known: Sequence[bytes] = ()) -> list[bytes]:
    """Return the key of every full page of ``tokens`` under the salt ``root``.

    ``known`` are keys of leading pages computed before; they are kept as they are.
    """
    keys = list(known)
    parent = keys[-1] if keys else root
    for start in range(len(keys) * PAGE, len(tokens) - PAGE + 1, PAGE):
        packed = array("I", tokens[start : start + PAGE]).tobytes()
        parent = hashlib.sha256(parent + packed).digest()[:_KEY_BYTES]
        keys.append(parent)
    return keys


def home_key(root: bytes, tokens: Sequence[int]) -> bytes:
    """Return one key for the first four pages of a prompt (fewer when it is shorter)."""
    head = array("I", tokens[: HOME_PAGES * PAGE]).tobytes()
    return hashlib.sha256(root + head).digest()[:_KEY_BYTES]
