"""How keys and values lie in pages: the seam between attention and page formats.

Pages hold 64 tokens of every layer. Within a layer, *block* ``page * kv_heads + head`` is one
head's share of a page and *line* ``block * 64 + offset`` one token of it.
"""

from typing import Protocol

import msgspec
import torch
from torch import Tensor

from turing_protocol.prefix import PAGE


class KVSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that a page format needs to know."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Type of the keys and values that are written and read."""

    @property
    def values_per_page(self) -> int:
        """Numbers that one page holds, keys and values of all layers together."""
        return 2 * self.layers * self.kv_heads * PAGE * self.head_dim


class KVCodec(Protocol):
    """A pool of pages in one format, made from ``(pages, spec, device)``.

    What is read must not depend on how writes were divided into calls. Pages that were never
    written read as finite numbers.
    """

    @staticmethod
    def page_bytes(spec: KVSpec) -> int:
        """Return the bytes of one page over all layers."""
        ...

    def write(self, layer: int, lines: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values ``[n, kv_heads, d]`` at ``lines`` ``[n * kv_heads]``."""
        ...

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values ``[m * 64, d]`` of ``blocks``, valid until the next read."""
        ...
