"""Pages in the model's own floating-point type."""

import numpy as np
import torch
from torch import Tensor

from turing_engine.kv.codec import KVSpec
from turing_protocol.prefix import PAGE


class PlainPages:
    """A pool of uncompressed pages; on the CPU, memory is taken when a page is first written."""

    def __init__(self, pages: int, spec: KVSpec, device: torch.device) -> None:
        blocks = pages * spec.kv_heads
        shape = (2, spec.layers, blocks, PAGE * spec.head_dim)
        pool = _zeros(shape, spec.dtype, device)
        self._blocks = pool
        self._lines = pool.view(2, spec.layers, blocks * PAGE, spec.head_dim)
        self._head_dim = spec.head_dim
        self._scratch = (pool.new_empty(0), pool.new_empty(0))

    @staticmethod
    def page_bytes(spec: KVSpec) -> int:
        """Return the bytes of one page over all layers."""
        return spec.values_per_page * spec.dtype.itemsize

    def write(self, layer: int, lines: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values ``[n, kv_heads, d]`` at ``lines`` ``[n * kv_heads]``."""
        self._lines[0, layer].index_copy_(0, lines, keys.reshape(-1, self._head_dim))
        self._lines[1, layer].index_copy_(0, lines, values.reshape(-1, self._head_dim))

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values ``[m * 64, d]`` of ``blocks``, valid until the next read."""
        keys, values = self._room(len(blocks))
        torch.index_select(self._blocks[0, layer], 0, blocks, out=keys)
        torch.index_select(self._blocks[1, layer], 0, blocks, out=values)
        return keys.view(-1, self._head_dim), values.view(-1, self._head_dim)

    def _room(self, blocks: int) -> tuple[Tensor, Tensor]:
        """Return two reused buffers: fresh ones of this size would fault every page in again."""
        size = blocks * PAGE * self._head_dim
        if self._scratch[0].numel() < size:
            self._scratch = (self._blocks.new_empty(size), self._blocks.new_empty(size))
        keys, values = (buffer[:size].view(blocks, -1) for buffer in self._scratch)
        return keys, values


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on the CPU from calloc, which costs no memory until it is written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
