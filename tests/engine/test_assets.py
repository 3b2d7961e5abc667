"""Facts and files of models, from GGUF files and folders of safetensors."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fakes.vocabularies import byte_level
from turing_engine.assets import Assets, load_assets
from turing_engine.locate import Located, locate
from turing_protocol.errors import Code, TuringError

CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 500,
    "eos_token_id": 483,
}


def folder(path: Path, **files: Any) -> Located:
    """Make a folder of a tiny model; ``files`` (``__`` for the dot) change or, None, remove one."""
    path.mkdir()
    tokenizer = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    contents: dict[str, Any] = {
        "config__json": CONFIG,
        "tokenizer__json": json.loads(tokenizer.to_str()),
        "tokenizer_config__json": {
            "chat_template": "{{ messages }}",
            "eos_token": {"content": "<|im_end|>"},
            "bos_token": None,
            "pad_token": "<|endoftext|>",
        },
    }
    for name, content in (contents | files).items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (path / name.replace("__", ".")).write_text(text)
    weights: dict[str, NDArray[Any]] = {
        "a": np.zeros((4, 8), np.float32),
        "b": np.zeros(6, np.float16),
    }
    save_file(weights, path / "model-00001-of-00002.safetensors")
    save_file({"c": np.zeros((2, 3), np.float32)}, path / "model-00002-of-00002.safetensors")
    return Located(path, "folder", "org/tiny", ("tiny",))


def specials(assets: Assets) -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads(assets.files["special_tokens"])
    return found


def generation(assets: Assets) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(assets.files["generation_config"])
    return found


def refusal(located: Located) -> TuringError:
    with pytest.raises(TuringError) as caught:
        load_assets(located)
    assert caught.value.param == "model"
    return caught.value


def test_facts_of_the_default_model() -> None:
    located = locate(None)
    info = load_assets(located).info
    assert info.name == "SmolLM2-135M-Instruct"
    assert info.aliases == ("HuggingFaceTB/SmolLM2-135M-Instruct",)
    assert info.digest == f"sha256:{hashlib.sha256(located.path.read_bytes()).hexdigest()}"
    assert (info.architecture, info.quantization, info.format) == ("llama", "Q4_1", "gguf")
    assert (info.context, info.vocab_size, info.embedding_length) == (8192, 49152, 576)
    assert (info.eos_ids, info.bos_id, info.add_bos) == ((2,), 1, False)
    assert info.parameters == 134_515_008
    assert info.size_bytes == located.path.stat().st_size
    assert info.kv_bytes_per_token == 23_040


def test_files_of_the_default_model() -> None:
    assets = load_assets(locate(None))
    assert set(assets.files) == {
        "tokenizer.json", "chat_template", "special_tokens", "generation_config", "metadata",
    }  # fmt: skip
    assert b"SmolLM, trained by Hugging Face" in assets.files["chat_template"]
    assert specials(assets) == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert generation(assets) == {"eos_ids": [2], "defaults": {}}


def test_metadata_of_a_file_is_what_it_says_of_itself_in_single_values() -> None:
    metadata = json.loads(load_assets(locate(None)).files["metadata"])
    assert metadata["general.architecture"] == "llama"
    assert metadata["general.license"] == "apache-2.0"
    assert (metadata["llama.block_count"], metadata["llama.attention.head_count_kv"]) == (30, 3)
    assert not {"tokenizer.ggml.tokens", "tokenizer.chat_template"} & metadata.keys()
    assert all(isinstance(value, str | int | float) for value in metadata.values())


def test_metadata_of_a_folder_has_the_names_of_a_file(tmp_path: Path) -> None:
    assert json.loads(load_assets(folder(tmp_path / "tiny")).files["metadata"]) == {
        "qwen2.block_count": 3,
        "qwen2.attention.head_count": CONFIG["num_attention_heads"],
        "qwen2.attention.head_count_kv": 2,
        "qwen2.attention.key_length": 8,
    }


def test_reading_a_model_loads_no_tensor_library() -> None:
    program = (
        "import sys; from turing_engine.assets import load_assets;"
        "from turing_engine.locate import locate; load_assets(locate(None));"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    paths = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=paths, timeout=60)


def test_facts_of_a_folder(tmp_path: Path) -> None:
    located = folder(tmp_path / "tiny")
    info = load_assets(located).info
    assert (info.name, info.aliases) == ("org/tiny", ("tiny",))
    assert (info.architecture, info.quantization) == ("qwen2", "F32")
    assert info.format == "safetensors"
    assert (info.context, info.vocab_size, info.embedding_length) == (256, 500, 32)
    assert info.parameters == 32 + 6 + 6
    assert info.kv_bytes_per_token == 2 * 3 * 2 * 8 * 2
    sizes = [file.stat().st_size for file in located.path.glob("*.safetensors")]
    assert info.size_bytes == sum(sizes)
    assert (info.bos_id, info.add_bos) == (None, False)


def test_the_digest_of_a_folder_follows_its_contents(tmp_path: Path) -> None:
    first = load_assets(folder(tmp_path / "one")).info.digest
    again = load_assets(folder(tmp_path / "two")).info.digest
    other = load_assets(folder(tmp_path / "three", generation_config__json={"top_k": 5}))
    assert first == again != other.info.digest
    assert first.startswith("sha256:")


def test_every_file_that_names_an_end_token_is_heard(tmp_path: Path) -> None:
    located = folder(
        tmp_path / "tiny",
        generation_config__json={
            "eos_token_id": [480, 482], "temperature": 0.6, "top_k": 20, "do_sample": True,
        },
    )  # fmt: skip
    assets = load_assets(located)
    im_end = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]).token_to_id("<|im_end|>")
    assert assets.info.eos_ids == tuple(dict.fromkeys((480, 482, 483, im_end)))
    assert generation(assets)["defaults"] == {"temperature": 0.6, "top_k": 20}


def test_special_tokens_and_template_of_a_folder(tmp_path: Path) -> None:
    assets = load_assets(folder(tmp_path / "tiny"))
    assert specials(assets) == {
        "bos_token": None, "eos_token": "<|im_end|>", "unk_token": None,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    assert assets.files["chat_template"] == b"{{ messages }}"
    assert json.loads(assets.files["tokenizer.json"])["model"]["type"] == "BPE"


def test_a_template_file_wins_and_of_several_the_default_one(tmp_path: Path) -> None:
    filed = folder(tmp_path / "filed", chat_template__jinja="{{ 'file é' }}")
    assert load_assets(filed).files["chat_template"].decode() == "{{ 'file é' }}"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    several = folder(tmp_path / "several", tokenizer_config__json={"chat_template": named})
    assert load_assets(several).files["chat_template"] == b"d"
    without = folder(tmp_path / "without", tokenizer_config__json=None)
    assert load_assets(without).files["chat_template"] == b""


def test_special_tokens_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    located = folder(
        tmp_path / "tiny",
        tokenizer_config__json={"add_bos_token": True},
        special_tokens_map__json={"bos_token": "<|im_start|>"},
    )
    info = load_assets(located).info
    assert info.add_bos
    assert info.bos_id == byte_level(["<|endoftext|>", "<|im_start|>"]).token_to_id("<|im_start|>")


def test_a_post_processor_tells_whether_the_first_token_is_added(tmp_path: Path) -> None:
    tokenizer = byte_level(["<|im_start|>"])
    spec = json.loads(tokenizer.to_str())
    step = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    bos = {"bos_token": "<|im_start|>"}
    for index, processor in enumerate([step, {"type": "Sequence", "processors": [step]}]):
        located = folder(
            tmp_path / str(index),
            tokenizer__json=spec | {"post_processor": processor},
            tokenizer_config__json=bos,
        )
        assert load_assets(located).info.add_bos
    plain = folder(tmp_path / "plain", tokenizer_config__json=bos)
    assert not load_assets(plain).info.add_bos


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ({"tokenizer__json": None}, Code.UNSUPPORTED, "no tokenizer.json"),
        ({"config__json": "{"}, Code.INVALID, "config.json is not JSON"),
        ({"config__json": "[]"}, Code.INVALID, "config.json is not a JSON object"),
        ({"config__json": CONFIG | {"hidden_size": "x"}}, Code.INVALID, "hidden_size"),
        ({"config__json": {"model_type": "llama"}}, Code.INVALID, "hidden_size"),
    ],
)
def test_a_folder_that_lacks_something_says_what(
    tmp_path: Path, files: dict[str, Any], code: Code, words: str
) -> None:
    error = refusal(folder(tmp_path / "tiny", **files))
    assert error.code is code
    assert words in error.message


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, (4).to_bytes(8, "little") + b"{{{{"])
def test_a_broken_weight_file_is_named(tmp_path: Path, data: bytes) -> None:
    located = folder(tmp_path / "tiny")
    (located.path / "model-00001-of-00002.safetensors").write_bytes(data)
    assert "model-00001-of-00002.safetensors" in refusal(located).message
