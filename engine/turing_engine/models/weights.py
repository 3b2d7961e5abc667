"""Weights on disk under one set of canonical names: safetensors folders and GGUF files.

Both readers check every tensor's presence and shape against the specification before any is read.
Files that need pickle to be opened (``.bin``, ``.pt``, ``.pth``) are refused by name.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors import SafetensorError, safe_open

from turing_engine.models.dequant import dequantize
from turing_engine.models.gguf import GgufFile
from turing_engine.models.spec import (
    DecoderSpec,
    spec_from_config,
    spec_from_gguf,
    tensor_shapes,
)
from turing_protocol.errors import Code, TuringError

JSON_LIMIT: Final = 64 << 20
"""Most bytes of a ``config.json`` or weight index."""

PICKLED: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

INDEX: Final = "model.safetensors.index.json"


class Weights(Protocol):
    """A checkpoint: what it is, and its tensors by canonical name (see ``tensor_shapes``)."""

    spec: DecoderSpec

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU, in the file's floating-point type or float32."""
        ...


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """Open a GGUF file or a safetensors folder.

    Raises ``TuringError`` naming the file and what is wrong with it; ``Code.NOT_FOUND`` when there
    is nothing at ``path``.
    """
    place = Path(path)
    if place.is_dir():
        return SafetensorsWeights(place)
    if not place.is_file():
        raise TuringError(Code.NOT_FOUND, f"no model at {place}", param="model")
    if place.suffix.lower() in PICKLED:
        raise _refuse_pickle(place.name)
    return GgufWeights(GgufFile(place))


def _refuse_pickle(name: str) -> TuringError:
    return TuringError(
        Code.UNSUPPORTED,
        f"{name} is a pickle, which can run code when it is opened: convert it to safetensors",
        param="model",
    )


def _invalid(message: str) -> TuringError:
    return TuringError(Code.INVALID, message, param="model")


def _check_shapes(
    spec: DecoderSpec, found: Mapping[str, tuple[int, ...]], names: Mapping[str, str], where: str
) -> None:
    """Compare ``found`` (by stored name) with what ``spec`` needs (stored name by canonical)."""
    for name, shape in tensor_shapes(spec).items():
        stored = names[name]
        if stored not in found:
            raise _invalid(f"{where}: lacks tensor {stored!r}")
        if found[stored] != shape:
            raise _invalid(f"{where}: tensor {stored!r} is {found[stored]}, not {shape}")


def _stored_names(
    spec: DecoderSpec, top: Mapping[str, str], layer: Mapping[str, str], prefix: str
) -> dict[str, str]:
    """Return the stored name of each canonical one; ``prefix`` is what layer ``{}`` starts with."""
    names = {}
    for name in tensor_shapes(spec):
        stem, _, kind = name.rpartition(".")
        if stem.startswith("layers."):
            _, index, part = stem.split(".")
            names[name] = f"{prefix.format(index)}{layer[part]}.{kind}"
        else:
            names[name] = f"{top[stem]}.{kind}"
    return names


# ---- safetensors -------------------------------------------------------------------------------

_HF_TOP: Final = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_HF_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_HF_POST_NORMS: Final = {
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}
_HF_DTYPES: Final = ("F64", "F32", "F16", "BF16")
_HF_TEXT_PREFIXES: Final = ("model.language_model.", "language_model.model.")
"""How multimodal checkpoints name what a text checkpoint calls ``model.``."""


class SafetensorsWeights:
    """A folder with ``config.json`` and one or several ``.safetensors`` files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spec = spec_from_config(_read_json(folder / "config.json"))
        self._files = {name: self._open(name) for name in self._file_names()}
        self._places: dict[str, tuple[str, str]] = {}
        """Text-model tensor name to (file, name in that file)."""
        for file, handle in self._files.items():
            for key in handle.keys():  # noqa: SIM118 - the handle is not iterable
                self._places[_text_name(key)] = (file, key)
        layer = _HF_LAYER | (_HF_POST_NORMS if self.spec.post_norms else {})
        self._names = _stored_names(self.spec, _HF_TOP, layer, "model.layers.{}.")
        self._check()

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor with canonical ``name``."""
        file, key = self._places[self._names[name]]
        tensor: torch.Tensor = self._files[file].get_tensor(key)
        return tensor

    def _file_names(self) -> list[str]:
        if (self._folder / INDEX).is_file():
            table = _read_json(self._folder / INDEX).get("weight_map")
            if not isinstance(table, dict) or not all(map(_plain_name, table.values())):
                raise _invalid(f"{INDEX}: weight_map does not map tensors to file names")
            return sorted(set(table.values()))
        if (self._folder / "model.safetensors").is_file():
            return ["model.safetensors"]
        pickled = [entry.name for entry in self._folder.iterdir() if entry.suffix in PICKLED]
        if pickled:
            raise _refuse_pickle(min(pickled))
        raise _invalid(f"{self._folder.name}: no model.safetensors and no {INDEX}")

    def _open(self, name: str) -> Any:
        try:
            return safe_open(self._folder / name, framework="pt")
        except (SafetensorError, OSError) as error:
            raise _invalid(f"{name}: {error}") from None

    def _check(self) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        for stored in self._names.values():
            if stored in self._places:
                file, key = self._places[stored]
                view = self._files[file].get_slice(key)
                shapes[stored] = tuple(view.get_shape())
                if view.get_dtype() not in _HF_DTYPES:
                    raise TuringError(
                        Code.UNSUPPORTED,
                        f"{file}: tensor {key!r} has type {view.get_dtype()};"
                        f" supported: {', '.join(_HF_DTYPES)}",
                        param="model",
                    )
        _check_shapes(self.spec, shapes, self._names, self._folder.name)


def _text_name(key: str) -> str:
    for prefix in _HF_TEXT_PREFIXES:
        if key.startswith(prefix):
            return "model." + key.removeprefix(prefix)
    return key.removeprefix("language_model.")


def _plain_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > JSON_LIMIT:
            raise _invalid(f"{path.name} is larger than {JSON_LIMIT} bytes")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _invalid(f"{path.parent.name}: no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{path.name} is not JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise _invalid(f"{path.name} is not a JSON object")
    return content


# ---- GGUF --------------------------------------------------------------------------------------

_GGUF_TOP: Final = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
_GGUF_LAYER: Final = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
}


class GgufWeights:
    """A GGUF file, de-quantised to float32 tensor by tensor as it is read."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.spec = spec_from_gguf(file)
        self._names = _stored_names(self.spec, _GGUF_TOP, _GGUF_LAYER, "blk.{}.")
        shapes = {name: info.shape for name, info in file.tensors.items()}
        _check_shapes(self.spec, shapes, self._names, file.path.name)

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor with canonical ``name``."""
        info = self._file.tensors[self._names[name]]
        values = torch.from_numpy(dequantize(self._file.data(info.name), info.kind, info.shape))
        part = name.split(".")[-2]
        if self.spec.family == "llama" and part in ("q", "k"):
            return _unpermute(values, self.spec.heads if part == "q" else self.spec.kv_heads)
        return values


def _unpermute(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order that GGUF's ``llama`` stores for q and k.

    There a head's rows are (0, d/2, 1, d/2 + 1, …) so that rotary pairs are neighbours; here a pair
    is (i, i + d/2). ``values`` is ``[heads * d, …]``, a weight or a bias.
    """
    rows = values.shape[0]
    pairs = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
