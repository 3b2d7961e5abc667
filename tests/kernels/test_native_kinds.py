"""Every storage kind of GGUF: what the tiles hold is what the file defines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray

from engine.checkpoints import prompt
from kernels.natively import Floats, logits_behind, native_engine
from turing_kernels.native import NativeError

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD, LAYERS, VOCAB = 256, 512, 4, 2, 64, 2, 300
KINDS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "F16", "BF16",
)  # fmt: skip
SCALES: dict[str, tuple[tuple[int, float, float], ...]] = {
    "Q4_0": ((0, 0.01, 0.02),),
    "Q4_1": ((0, 0.01, 0.02), (2, -0.15, -0.1)),
    "Q5_0": ((0, 0.005, 0.01),),
    "Q5_1": ((0, 0.005, 0.01), (2, -0.15, -0.1)),
    "Q8_0": ((0, 0.0005, 0.001),),
    "Q2_K": ((80, 0.005, 0.008), (82, 0.006, 0.008)),
    "Q3_K": ((108, 0.0008, 0.001),),
    "Q4_K": ((0, 0.0003, 0.0005), (2, 0.002, 0.004)),
    "Q5_K": ((0, 0.0002, 0.0003), (2, 0.002, 0.004)),
    "Q6_K": ((208, 0.00003, 0.00005),),
    "IQ4_NL": ((0, 0.0008, 0.0015),),
    "IQ4_XS": ((0, 0.00005, 0.0001),),
}
"""Byte offset and range of the fp16 factors in a block; all other bits may be anything."""

SHAPES = {
    "attn_q": (HEADS * HEAD, HIDDEN),
    "attn_k": (KV_HEADS * HEAD, HIDDEN),
    "attn_v": (KV_HEADS * HEAD, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}

Make = Callable[[tuple[int, int]], tuple[NDArray[Any], GGMLQuantizationType]]


def random_matrix(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the rows ``[rows, bytes]`` of a matrix of random blocks."""
    storage = GGMLQuantizationType[kind]
    if kind in ("F16", "BF16"):
        return quants.quantize(rng.normal(0, 0.08, shape).astype(np.float32), storage)
    size, nbytes = GGML_QUANT_SIZES[storage]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // size, nbytes), dtype=np.uint8)
    for offset, low, high in SCALES[kind]:
        factors = rng.uniform(low, high, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = factors.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write_model(path: Path, make: Make) -> Path:
    """Write a small model of family qwen3, whose matrices ``make`` makes by shape."""
    rng = np.random.default_rng(5)
    writer = GGUFWriter(path, "qwen3")
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)

    def norm(name: str, size: int) -> None:
        writer.add_tensor(name, rng.uniform(0.5, 1.5, size).astype(np.float32))

    def matrix(name: str, shape: tuple[int, int]) -> None:
        data, storage = make(shape)
        writer.add_tensor(name, data, raw_dtype=storage)

    matrix("token_embd.weight", (VOCAB, HIDDEN))
    norm("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN)):
            norm(f"blk.{layer}.{name}.weight", size)
        for name in ("attn_q_norm", "attn_k_norm"):
            norm(f"blk.{layer}.{name}.weight", HEAD)
        for name, shape in SHAPES.items():
            matrix(f"blk.{layer}.{name}.weight", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(kind: str) -> Make:
    """Make random matrices of ``kind``."""
    rng = np.random.default_rng(9)
    return lambda shape: (random_matrix(kind, shape, rng), GGMLQuantizationType[kind])


def widened(kind: str) -> Make:
    """Make the same matrices as fp32, by the reference implementation of the format."""
    make = stored(kind)

    def wide(shape: tuple[int, int]) -> tuple[NDArray[Any], GGMLQuantizationType]:
        data, storage = make(shape)
        return quants.dequantize(data, storage), GGMLQuantizationType.F32

    return wide


def logits_of(path: Path, **options: Any) -> Floats:
    ids = [token % VOCAB for token in prompt(90)]
    with native_engine(path, **options) as engine:
        return logits_behind(engine, ids, [1, 9, 64, 90])


@pytest.mark.parametrize("kind", KINDS)
def test_exact_weights_are_those_of_the_format(kind: str, tmp_path: Path) -> None:
    ours = logits_of(write_model(tmp_path / "a.gguf", stored(kind)), exact=True)
    wanted = logits_of(write_model(tmp_path / "b.gguf", widened(kind)), exact=True)
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(ours, wanted, atol=1e-4 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("kind", KINDS)
def test_int8_rows_on_every_kind_stay_close(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", stored(kind))
    wanted = logits_of(path, exact=True)
    ours = logits_of(path)
    assert np.linalg.norm(ours - wanted) / np.linalg.norm(wanted) < 0.06


def test_kinds_may_be_mixed(tmp_path: Path) -> None:
    """Each matrix has its own kind, a float one among them, as in files of mixed quality."""
    rng = np.random.default_rng(9)
    order = iter(KINDS * 2)

    def make(shape: tuple[int, int]) -> tuple[NDArray[Any], GGMLQuantizationType]:
        kind = next(order)
        return random_matrix(kind, shape, rng), GGMLQuantizationType[kind]

    path = write_model(tmp_path / "mixed.gguf", make)
    wanted = logits_of(path, exact=True)
    ours = logits_of(path)
    assert np.linalg.norm(ours - wanted) / np.linalg.norm(wanted) < 0.06


def test_a_kind_without_a_reader_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)

    def make(shape: tuple[int, int]) -> tuple[NDArray[Any], GGMLQuantizationType]:
        size, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType.IQ2_XS]
        data = rng.integers(0, 256, (shape[0], shape[1] // size * nbytes), dtype=np.uint8)
        return data, GGMLQuantizationType.IQ2_XS

    path = write_model(tmp_path / "a.gguf", make)
    with pytest.raises(NativeError, match=r"token_embd\.weight has kind IQ2_XS"):
        logits_of(path)
