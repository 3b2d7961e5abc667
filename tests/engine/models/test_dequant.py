"""De-quantisation agrees with the gguf package bit for bit."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from turing_engine.models.dequant import SUPER_BLOCK, dequantize
from turing_engine.models.gguf import BLOCK_TYPES

KINDS = {block.kind: block for block in BLOCK_TYPES.values()}


def random_blocks(kind: str, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return ``count`` blocks of random bytes, every bit pattern a valid quant."""
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (count, KINDS[kind].nbytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_equals_the_reference_bit_for_bit(kind: str) -> None:
    count = 3 * (1 << 20) // (2 * KINDS[kind].size)  # one and a half strips
    blocks = random_blocks(kind, count)
    ours = dequantize(blocks.ravel(), kind, (count, KINDS[kind].size))
    reference = quants.dequantize(blocks, GGMLQuantizationType[kind])
    finite = np.isfinite(reference)
    assert finite.mean() > 0.5
    assert np.array_equal(np.isnan(ours), np.isnan(reference))
    assert np.array_equal(ours[finite].view(np.uint32), reference[finite].view(np.uint32))


def test_keeps_the_shape_and_refuses_a_broken_length() -> None:
    data = random_blocks("Q4_K", 6).ravel()
    assert dequantize(data, "Q4_K", (3, 2 * SUPER_BLOCK)).shape == (3, 2 * SUPER_BLOCK)
    with pytest.raises(ValueError, match="reshape"):
        dequantize(data[:-1], "Q4_K", (3, 2 * SUPER_BLOCK))
    with pytest.raises(KeyError):
        dequantize(data, "IQ2_XS", (3, 2 * SUPER_BLOCK))
