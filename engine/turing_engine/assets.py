"""What a gateway needs of a model's files: its facts, tokenizer, chat template, special tokens.

Reads headers and small files only (the digest apart), so it neither needs torch nor takes long.
"""

import hashlib
import json
import math
import mmap
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from turing_engine.locate import Located
from turing_engine.models import vocab
from turing_engine.models.gguf import GgufFile
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo

Json = dict[str, Any]

SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
SAMPLING_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
KV_ELEMENT_BYTES: Final = 2
"""``ModelInfo.kv_bytes_per_token`` counts 16-bit pages; a runner knows what it really stores."""

_MAX_HEADER = 100 << 20
_FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip
"""``general.file_type`` of a GGUF file."""


class Assets(NamedTuple):
    """Facts of a model and the files that gateways fetch, by name.

    ``tokenizer.json``; ``chat_template``, empty when the model has none; ``special_tokens``, JSON
    of bos_token, eos_token, unk_token and pad_token texts or null; ``generation_config``, JSON of
    ``eos_ids`` and of the sampling ``defaults`` that the model's authors recommend; ``metadata``,
    JSON of single facts under GGUF's names.
    """

    info: ModelInfo
    files: dict[str, bytes]


class _Shape(NamedTuple):
    """Sizes from which facts are computed."""

    architecture: str
    context: int
    embedding: int
    layers: int
    heads: int
    kv_heads: tuple[int, ...]
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * sum(self.kv_heads) * self.head_dim * KV_ELEMENT_BYTES


def load_assets(located: Located) -> Assets:
    """Read what gateways need of the model at ``located``.

    A file that is broken or lacks something is ``Code.INVALID``, a kind of tokenizer that is not
    supported ``Code.UNSUPPORTED``; both say which.
    """
    return _from_gguf(located) if located.kind == "gguf" else _from_folder(located)


def named(info: ModelInfo, served_name: str | None) -> ModelInfo:
    """Return ``info`` under the name that clients are to use, if one is set."""
    return replace(info, name=served_name, aliases=()) if served_name else info


# GGUF


def _from_gguf(located: Located) -> Assets:
    file = GgufFile(located.path)
    metadata = file.metadata
    shape = _gguf_shape(metadata)
    eos_ids = vocab.end_ids(metadata)
    files = {
        "tokenizer.json": vocab.tokenizer_json(metadata),
        "chat_template": str(metadata.get("tokenizer.chat_template", "")).encode(),
        "special_tokens": msgspec.json.encode(_gguf_specials(metadata)),
        "generation_config": msgspec.json.encode({"eos_ids": eos_ids, "defaults": {}}),
        "metadata": msgspec.json.encode(_gguf_facts(metadata)),
    }
    stat = located.path.stat()
    info = ModelInfo(
        name=located.name,
        digest=f"sha256:{_sha256(located.path)}",
        architecture=shape.architecture,
        context=shape.context,
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        eos_ids=eos_ids,
        bos_id=vocab.special_id(metadata, "bos"),
        add_bos=vocab.adds_bos(metadata),
        parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        size_bytes=stat.st_size,
        quantization=_gguf_quantization(file),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        modified=stat.st_mtime,
        aliases=located.aliases,
        embedding_length=shape.embedding,
        format="gguf",
    )
    return Assets(info, files)


def _gguf_shape(metadata: Mapping[str, Any]) -> _Shape:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise _invalid("the file has no general.architecture")

    def number(key: str, default: int | None = None) -> int:
        return _number(metadata, f"{architecture}.{key}", default)

    embedding, layers = number("embedding_length"), number("block_count")
    heads = number("attention.head_count")
    kv_heads = metadata.get(f"{architecture}.attention.head_count_kv", heads)
    per_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
    return _Shape(
        architecture=architecture,
        context=number("context_length"),
        embedding=embedding,
        layers=layers,
        heads=heads,
        kv_heads=tuple(per_layer),
        head_dim=number("attention.key_length", embedding // heads),
    )


def _gguf_specials(metadata: Mapping[str, Any]) -> dict[str, str | None]:
    tokens = metadata["tokenizer.ggml.tokens"]
    names = zip(SPECIAL_TOKENS, ("bos", "eos", "unknown", "padding"), strict=True)
    ids = {key: vocab.special_id(metadata, name) for key, name in names}
    return {key: None if index is None else tokens[index] for key, index in ids.items()}


def _gguf_facts(metadata: Mapping[str, Any]) -> Json:
    """Return what of the metadata is a single value; the template is a file of its own."""
    plain = {k: v for k, v in metadata.items() if isinstance(v, str | int | float)}
    plain.pop("tokenizer.chat_template", None)
    return plain


def _gguf_quantization(file: GgufFile) -> str:
    stated = _FILE_TYPES.get(file.metadata.get("general.file_type", -1))
    return stated or _most_common((t.kind, t.nbytes) for t in file.tensors.values())


# Folder of safetensors


def _from_folder(located: Located) -> Assets:
    path = located.path
    config = _read_json(path / "config.json")
    generation = _read_json(path / "generation_config.json", optional=True)
    settings = _read_json(path / "tokenizer_config.json", optional=True)
    tokenizer = _read_tokenizer(path)
    specials = _folder_specials(path, settings)
    ids = _added_ids(tokenizer)
    eos_ids = _folder_eos(generation, config, ids.get(specials["eos_token"] or ""))
    defaults = {key: generation[key] for key in SAMPLING_DEFAULTS if generation.get(key)}
    files = {
        "tokenizer.json": (path / "tokenizer.json").read_bytes(),
        "chat_template": _folder_template(path, settings).encode(),
        "special_tokens": msgspec.json.encode(specials),
        "generation_config": msgspec.json.encode({"eos_ids": eos_ids, "defaults": defaults}),
        "metadata": msgspec.json.encode(_folder_facts(config.get("text_config", config))),
    }
    bos_id = ids.get(specials["bos_token"] or "")
    add_bos = bos_id is not None and _folder_adds_bos(settings, tokenizer, specials["bos_token"])
    info = _folder_info(located, config.get("text_config", config), eos_ids, bos_id, add_bos)
    return Assets(info, files)


def _folder_info(
    located: Located, config: Json, eos_ids: tuple[int, ...], bos_id: int | None, add_bos: bool
) -> ModelInfo:
    weights = sorted(located.path.glob("*.safetensors"))
    shape = _folder_shape(config)
    tensors = [tensor for file in weights for tensor in _safetensors_header(file)]
    stats = [file.stat() for file in weights]
    return ModelInfo(
        name=located.name,
        digest=f"sha256:{_folder_digest(located.path)}",
        architecture=shape.architecture,
        context=shape.context,
        vocab_size=_number(config, "vocab_size"),
        eos_ids=eos_ids,
        bos_id=bos_id,
        add_bos=add_bos,
        parameters=sum(count for _, count in tensors),
        size_bytes=sum(stat.st_size for stat in stats),
        quantization=_most_common(tensors),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        modified=max(stat.st_mtime for stat in stats),
        aliases=located.aliases,
        embedding_length=shape.embedding,
        format="safetensors",
    )


def _folder_shape(config: Mapping[str, Any]) -> _Shape:
    embedding = _number(config, "hidden_size")
    layers, heads = _number(config, "num_hidden_layers"), _number(config, "num_attention_heads")
    kv_heads = _number(config, "num_key_value_heads", heads)
    return _Shape(
        architecture=str(config.get("model_type", "")),
        context=_number(config, "max_position_embeddings"),
        embedding=embedding,
        layers=layers,
        heads=heads,
        kv_heads=(kv_heads,) * layers,
        head_dim=_number(config, "head_dim", embedding // heads),
    )


def _folder_facts(config: Mapping[str, Any]) -> Json:
    shape = _folder_shape(config)
    facts = {
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads[0],
        "attention.key_length": shape.head_dim,
    }
    return {f"{shape.architecture}.{key}": value for key, value in facts.items()}


def _read_tokenizer(path: Path) -> Json:
    if not (path / "tokenizer.json").is_file():
        raise TuringError(
            Code.UNSUPPORTED,
            f"the folder {path} has no tokenizer.json; save the tokenizer in its fast form",
            param="model",
        )
    return _read_json(path / "tokenizer.json")


def _added_ids(tokenizer: Json) -> dict[str, int]:
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    return ids | {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}


def _folder_specials(path: Path, settings: Json) -> dict[str, str | None]:
    fallback = _read_json(path / "special_tokens_map.json", optional=True)
    found = {key: settings.get(key) or fallback.get(key) for key in SPECIAL_TOKENS}
    return {key: t.get("content") if isinstance(t, dict) else t for key, t in found.items()}


def _folder_eos(generation: Json, config: Json, tokenizer_eos: int | None) -> tuple[int, ...]:
    stated = [generation.get("eos_token_id"), config.get("eos_token_id"), tokenizer_eos]
    lists = [ids if isinstance(ids, list) else [ids] for ids in stated if ids is not None]
    return tuple(dict.fromkeys(index for ids in lists for index in ids))


def _folder_adds_bos(settings: Json, tokenizer: Json, bos: str | None) -> bool:
    stated = settings.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    processor = tokenizer.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        first = (step.get("single") or [{}])[0]
        if first.get("SpecialToken", {}).get("id") == bos:
            return True
    return False


def _folder_template(path: Path, settings: Json) -> str:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    stated = settings.get("chat_template") or ""
    if isinstance(stated, list):
        named = {entry.get("name"): entry.get("template") for entry in stated}
        stated = named.get("default") or ""
    return str(stated)


def _safetensors_header(path: Path) -> list[tuple[str, int]]:
    """Return (storage type, number of elements) of every tensor of a file."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(_MAX_HEADER, path.stat().st_size - 8):
            raise _invalid(f"{path.name} is not a safetensors file or is truncated")
        header = _parse_json(file.read(length), path.name)
    header.pop("__metadata__", None)
    return [(tensor["dtype"], math.prod(tensor["shape"])) for tensor in header.values()]


def _folder_digest(path: Path) -> str:
    names = sorted(f for f in path.iterdir() if f.suffix in (".safetensors", ".json", ".jinja"))
    return hashlib.sha256("".join(sorted(map(_sha256, names))).encode()).hexdigest()


# Both


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return hashlib.sha256().hexdigest()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return hashlib.sha256(data).hexdigest()


def _read_json(path: Path, *, optional: bool = False) -> Json:
    if optional and not path.is_file():
        return {}
    return _parse_json(path.read_bytes(), path.name)


def _parse_json(data: bytes, name: str) -> Json:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid(f"{name} is not a JSON object")
    return value


def _number(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key)
    found = default if value is None else value
    if not isinstance(found, int) or found <= 0:
        raise _invalid(f"{key} of the model is {found!r}, not a positive number")
    return found


def _most_common(kinds: Iterable[tuple[str, int]]) -> str:
    weights: Counter[str] = Counter()
    for kind, weight in kinds:
        weights[kind] += weight
    return weights.most_common(1)[0][0] if weights else ""


def _invalid(message: str) -> TuringError:
    return TuringError(Code.INVALID, message, param="model")
