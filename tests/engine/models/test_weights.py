"""Weights by canonical name from both formats, and one clean error per broken checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints import checkpoint, make_model, write_gguf
from turing_engine.models.spec import tensor_shapes
from turing_engine.models.weights import open_weights
from turing_protocol.errors import Code, TuringError


def copy_of(name: str, folder: Path) -> Path:
    shutil.copytree(checkpoint(name)[0], folder)
    return folder


@pytest.mark.parametrize("name", ["llama", "llama-biased", "gemma3"])
def test_every_tensor_has_its_canonical_name_and_shape(name: str) -> None:
    weights = open_weights(checkpoint(name)[0])
    for key, shape in tensor_shapes(weights.spec).items():
        assert tuple(weights.tensor(key).shape) == shape


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    sharded = open_weights(tmp_path / "sharded")
    whole = open_weights(checkpoint("qwen3")[0])
    for key in tensor_shapes(whole.spec):
        assert torch.equal(sharded.tensor(key), whole.tensor(key))


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_half_of_a_multimodal_checkpoint(prefix: str, tmp_path: Path) -> None:
    folder = copy_of("gemma3", tmp_path / "m")
    whole = open_weights(folder)
    tensors = {
        key.replace("model.", prefix, 1): value
        for key, value in load_file(folder / "model.safetensors").items()
    }
    tensors["vision_tower.embed.weight"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    half = open_weights(folder)
    for key in tensor_shapes(whole.spec):
        assert torch.equal(half.tensor(key), whole.tensor(key))


@pytest.mark.parametrize("name", ["llama", "llama-biased", "qwen3"])
def test_gguf_holds_the_same_tensors(name: str, tmp_path: Path) -> None:
    """Also shows that q and k of ``llama`` come back in the order of the heads' halves."""
    stored = open_weights(write_gguf(make_model(name), tmp_path / "m.gguf"))
    original = open_weights(checkpoint(name)[0])
    for key in tensor_shapes(original.spec):
        assert torch.equal(stored.tensor(key), original.tensor(key)), key


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantised_gguf_is_near_the_original(kind: str, tmp_path: Path) -> None:
    stored = open_weights(write_gguf(make_model("llama"), tmp_path / "m.gguf", kind=kind))
    original = open_weights(checkpoint("llama")[0])
    for key in ("layers.0.q.weight", "layers.2.down.weight", "embed.weight"):
        error = (stored.tensor(key) - original.tensor(key)).abs().max()
        assert 0 < error < original.tensor(key).abs().max() / 8


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        fields = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(fields | changes))

    return edit


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def write(name: str, data: bytes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return edit


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def integer_norm(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


INDEX = "model.safetensors.index.json"
BROKEN: dict[str, tuple[Callable[[Path], Any], Code, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), Code.INVALID, "no config.json"),
    "config is not json": (write("config.json", b"{"), Code.INVALID, "config.json is not JSON"),
    "config is deep": (write("config.json", b"[" * 10**5), Code.INVALID, "config.json is not JSON"),
    "config is a list": (write("config.json", b"[]"), Code.INVALID, "not a JSON object"),
    "config is not text": (write("config.json", b"\xff"), Code.INVALID, "config.json is not JSON"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        Code.INVALID,
        "no model.safetensors",
    ),
    "pickles": (only_pickles, Code.UNSUPPORTED, "pytorch_model.bin is a pickle"),
    "cut": (write("model.safetensors", b"\x08\0\0\0\0\0\0\0{}"), Code.INVALID, "model.safetensors"),
    "tensor missing": (
        edit_tensors(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        Code.INVALID,
        "lacks tensor 'model.layers.1.mlp.up_proj.weight'",
    ),
    "wrong shape": (
        edit_config(intermediate_size=95),
        Code.INVALID,
        r"'model.layers.0.mlp.gate_proj.weight' is \(96, 64\), not \(95, 64\)",
    ),
    "integers": (edit_tensors(integer_norm), Code.UNSUPPORTED, "has type I8"),
    "index without a map": (write(INDEX, b'{"weight_map": 3}'), Code.INVALID, "weight_map"),
    "index that leaves the folder": (
        write(INDEX, b'{"weight_map": {"a": "../model.safetensors"}}'),
        Code.INVALID,
        "weight_map",
    ),
    "index of pickles": (
        write(INDEX, b'{"weight_map": {"a": "pytorch_model.bin"}}'),
        Code.INVALID,
        "weight_map",
    ),
    "index of nothing": (
        write(INDEX, b'{"weight_map": {"a": "gone.safetensors"}}'),
        Code.INVALID,
        "gone.safetensors",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_names_what_is_wrong_with_a_folder(case: str, tmp_path: Path) -> None:
    damage, code, words = BROKEN[case]
    folder = copy_of("llama", tmp_path / "m")
    damage(folder)
    with pytest.raises(TuringError, match=words) as caught:
        open_weights(folder)
    assert caught.value.code is code
    assert caught.value.param == "model"


def test_names_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(TuringError, match="no model at") as caught:
        open_weights(tmp_path / "gone.gguf")
    assert caught.value.code is Code.NOT_FOUND
    for name in ("model.bin", "model.pt", "model.PTH"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(TuringError, match=f"{name} is a pickle"):
            open_weights(tmp_path / name)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(TuringError, match="GGUF version 0"):
        open_weights(tmp_path / "model.gguf")


def test_gguf_without_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    model = make_model("llama")
    model.config.num_hidden_layers = 4
    path = write_gguf(model, tmp_path / "m.gguf")
    with pytest.raises(TuringError, match=r"lacks tensor 'blk.3.attn_norm.weight'"):
        open_weights(path)
