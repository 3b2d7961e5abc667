"""Every family's logits and greedy tokens against transformers, from both weight formats."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.checkpoints import (
    CONFIGS,
    checkpoint,
    make_model,
    prompt,
    reference_greedy,
    reference_logits,
    write_gguf,
)
from engine.driving import generate
from turing_engine.attention.paged import PagedAttention, Span
from turing_engine.kv.codec import KVSpec
from turing_engine.kv.plain import PlainPages
from turing_engine.models.decoder import Decoder, load_decoder
from turing_engine.models.weights import GgufWeights, open_weights
from turing_engine.run.runner import RunnerSpec
from turing_engine.run.torch_runner import TorchRunner

CPU = torch.device("cpu")


@torch.inference_mode()
def all_logits(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """Return the logits behind every token of one sequence, ``[len(ids), vocab]``."""
    spec = decoder.spec
    kv = KVSpec(
        layers=spec.layers, kv_heads=spec.kv_heads, head_dim=spec.head_dim, dtype=decoder.dtype
    )
    attention = PagedAttention(
        PlainPages(9, kv, CPU),
        kv_heads=spec.kv_heads,
        scale=spec.attention_scale,
        windows=spec.windows,
    )
    meta = attention.prepare([Span(0, len(ids), [7, 2, 5])], decoder.dtype, CPU)
    rows = torch.arange(len(ids))

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention.attend(layer, q, k, v, meta)

    return decoder.forward(torch.tensor(ids), rows, rows, attend)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str) -> None:
    folder, model = checkpoint(name)
    ids = prompt(160)  # beyond every window, over three pages
    decoder = load_decoder(open_weights(folder), torch.float32, CPU)
    expected = reference_logits(model, ids)
    assert expected.std() > 0.5
    assert (all_logits(decoder, ids) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_equal_transformers(name: str) -> None:
    folder, model = checkpoint(name)
    runner = TorchRunner(
        RunnerSpec(
            model=str(folder),
            pages=8,
            kv_bytes=0,
            max_running=1,
            max_step_tokens=512,
            context=512,
            threads=1,
        )
    )
    for length in (1, 5, 63, 64, 150):
        ids = prompt(length, salt=length)
        expected = reference_greedy(model, ids, 40)
        assert generate(runner, ids, 40) == expected
        assert len(set(expected)) > 4


def gguf_model(name: str) -> PreTrainedModel:
    """Return a model whose facts GGUF can carry: its converters store no other scale or cap."""
    model = make_model(name)
    if name == "gemma3":
        model.config.final_logit_softcapping = None
        for layer in model.model.layers:
            layer.self_attn.scaling = layer.self_attn.head_dim**-0.5
        rope = model.model.rotary_emb
        rope.full_attention_inv_freq *= 8  # undo the linear factor of the configuration
    return model


@pytest.mark.parametrize("name", ["llama", "llama-biased", "qwen3", "gemma3"])
def test_gguf_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model = gguf_model(name)
    weights = open_weights(write_gguf(model, tmp_path / "model.gguf"))
    assert isinstance(weights, GgufWeights)
    ids = prompt(160)
    decoder = load_decoder(weights, torch.float32, CPU)
    assert (all_logits(decoder, ids) - reference_logits(model, ids)).abs().max() <= 1e-4


def test_bfloat16_is_close_to_float32() -> None:
    folder, model = checkpoint("qwen3")
    ids = prompt(100)
    decoder = load_decoder(open_weights(folder), torch.bfloat16, CPU)
    expected = reference_logits(model, ids)
    logits = all_logits(decoder, ids)
    assert logits.dtype == torch.float32
    assert (logits - expected).pow(2).mean().sqrt() < 0.05 * expected.std()
