"""One specification for every decoder family this engine runs, read from either weight format."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from turing_engine.models.gguf import GgufFile
from turing_protocol.errors import Code, TuringError


class Rope(msgspec.Struct, frozen=True):
    """Rotary position embedding: pair ``i`` of a head turns by ``theta^(-2i/d) / divisors[i]``.

    ``divisors`` is empty (all 1) or has one number per pair; every scaling rule becomes one.
    """

    theta: float
    divisors: tuple[float, ...] = ()


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes the llama, mistral, qwen2, qwen3 and gemma3 decoders from each other."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    """Longest sequence in tokens that the model was trained for."""
    norm_eps: float
    windows: tuple[int, ...]
    """Per layer, how many keys a query sees, its own included; 0 = all before it."""
    rope: Rope
    local_rope: Rope
    """Used by layers with a window; equal to ``rope`` in all families but gemma3."""
    attention_scale: float
    """Factor of the dot products, 1/sqrt(head_dim) or 1/sqrt(query_pre_attn_scalar)."""
    activation: str = "silu"
    """``silu`` or ``gelu_tanh``."""
    norm_offset: float = 0.0
    """Added to every stored norm weight; 1 in gemma3's own checkpoints."""
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0
    """The logits become ``cap * tanh(logits / cap)``; 0 = off."""
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    """Norms behind attention and feed-forward, before the residual is added."""
    tied_head: bool = False


def tensor_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the canonical name and shape of every tensor that a model of ``spec`` has."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (spec.vocab_size, spec.hidden),
        "norm.weight": (spec.hidden,),
    }
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, spec.hidden)
    layer = _layer_shapes(spec)
    for index in range(spec.layers):
        shapes.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def _layer_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    linears = {
        "q": (query, spec.hidden, spec.qkv_bias),
        "k": (key, spec.hidden, spec.qkv_bias),
        "v": (key, spec.hidden, spec.qkv_bias),
        "o": (spec.hidden, query, spec.output_bias),
        "gate": (spec.intermediate, spec.hidden, spec.ffn_bias),
        "up": (spec.intermediate, spec.hidden, spec.ffn_bias),
        "down": (spec.hidden, spec.intermediate, spec.ffn_bias),
    }
    norms = {"attn_norm": spec.hidden, "ffn_norm": spec.hidden}
    if spec.post_norms:
        norms |= {"post_attn_norm": spec.hidden, "post_ffn_norm": spec.hidden}
    if spec.qk_norm:
        norms |= {"q_norm": spec.head_dim, "k_norm": spec.head_dim}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (n,) for name, n in norms.items()}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def spec_from_config(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a ``config.json``; what it asks for and we lack is ``Code.UNSUPPORTED``, named."""
    family = config.get("model_type")
    _Fields(config, "config.json").refuse("quantization_config")
    if family == "gemma3":  # the multimodal checkpoint: its text half is a gemma3_text
        config = _Fields(config, "config.json").table("text_config")
        family = "gemma3_text"
    reader = _CONFIG_READERS.get(str(family))
    if reader is None:
        known = ", ".join(_CONFIG_READERS)
        raise _unsupported(f"config.json: model_type {family!r}; supported: {known}")
    fields = _Fields(config, "config.json")
    fields.refuse("attn_logit_softcapping", "use_bidirectional_attention")
    return _checked(reader(fields))


def spec_from_gguf(file: GgufFile) -> DecoderSpec:
    """Read a GGUF file's metadata; what it asks for and we lack is ``Code.UNSUPPORTED``, named."""
    arch = file.metadata.get("general.architecture")
    where = file.path.name
    if arch not in _GGUF_ARCHITECTURES:
        known = ", ".join(_GGUF_ARCHITECTURES)
        raise _unsupported(f"{where}: architecture {arch!r}; supported: {known}")
    prefix = f"{arch}."
    own = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    fields = _Fields(own, where)
    fields.refuse("expert_count", "attn_logit_softcapping", "attention.scale")
    return _checked(_read_gguf(fields, str(arch), file))


def llama3_divisors(
    theta: float, head_dim: int, *, factor: float, low: float, high: float, context: float
) -> tuple[float, ...]:
    """Return the divisors of Llama 3.1's rule (rope_type ``llama3``).

    Wavelengths up to ``context / high`` tokens stay, those above ``context / low`` are stretched by
    ``factor``, the ones between are interpolated.
    """
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        smooth = (context / wavelength - low) / (high - low)
        smooth = min(1.0, max(0.0, smooth))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(divisors)


class _Fields:
    """Typed, bounded access to a table of untrusted values; errors name ``where`` and the key."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def invalid(self, key: str, words: str) -> TuringError:
        value = repr(self._values.get(key))[:80]
        return TuringError(
            Code.INVALID, f"{self._where}: {key} is {value}, not {words}", param="model"
        )

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self._values.get(key):
                value = repr(self._values[key])[:80]
                raise _unsupported(f"{self._where}: {key} = {value} is not supported")

    def integer(self, key: str, default: int | None = None, *, most: int = 1 << 24) -> int:
        value = self._values[key] if self.has(key) else default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.invalid(key, f"an integer from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values[key] if self.has(key) else default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(key, "a number")
        if not 0 < value < float("inf"):
            raise self.invalid(key, "a positive finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._values[key] if self.has(key) else default
        if not isinstance(value, str):
            raise self.invalid(key, "text")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if not isinstance(value, list):
            raise self.invalid(key, "a list")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        value = self._values.get(key)
        if not isinstance(value, dict):
            raise self.invalid(key, "a table")
        return value


def _unsupported(message: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, message, param="model")


def _checked(spec: DecoderSpec) -> DecoderSpec:
    if spec.heads % spec.kv_heads:
        raise TuringError(
            Code.INVALID,
            f"{spec.heads} attention heads cannot share {spec.kv_heads} key/value heads",
            param="model",
        )
    if spec.head_dim % 2:
        raise TuringError(Code.INVALID, f"head size {spec.head_dim} is odd", param="model")
    return spec


# ---- config.json -------------------------------------------------------------------------------


def _sizes(fields: _Fields, *, heads: int | None = None, **defaults: int) -> dict[str, Any]:
    """Return the dimensions that all families name alike; ``defaults`` are the family's own."""
    hidden = fields.integer("hidden_size")
    query_heads = fields.integer("num_attention_heads", heads, most=4096)
    return {
        "hidden": hidden,
        "heads": query_heads,
        "layers": fields.integer("num_hidden_layers", most=4096),
        "intermediate": fields.integer("intermediate_size"),
        "kv_heads": fields.integer("num_key_value_heads", defaults.get("kv_heads", query_heads)),
        "head_dim": fields.integer(
            "head_dim", defaults.get("head_dim", hidden // query_heads), most=4096
        ),
        "vocab_size": fields.integer("vocab_size", defaults.get("vocab_size")),
        "context": fields.integer("max_position_embeddings", defaults.get("context")),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
    }


def _llama_like(fields: _Fields, family: str, sizes: dict[str, Any], **more: Any) -> DecoderSpec:
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.invalid("hidden_act", "silu")
    rope = _config_rope(fields, sizes["head_dim"])
    more.setdefault("windows", (0,) * sizes["layers"])
    return DecoderSpec(
        family=family,
        rope=rope,
        local_rope=rope,
        attention_scale=sizes["head_dim"] ** -0.5,
        tied_head=fields.flag("tie_word_embeddings", False),
        **sizes,
        **more,
    )


def _read_llama(fields: _Fields) -> DecoderSpec:
    bias = fields.flag("attention_bias", False)
    return _llama_like(
        fields,
        "llama",
        _sizes(fields),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=fields.flag("mlp_bias", False),
    )


def _read_mistral(fields: _Fields) -> DecoderSpec:
    sizes = _sizes(fields, kv_heads=8)
    window = fields.integer("sliding_window") if fields.has("sliding_window") else 0
    return _llama_like(fields, "mistral", sizes, windows=(window,) * sizes["layers"])


def _read_qwen2(fields: _Fields) -> DecoderSpec:
    sizes = _sizes(fields)
    return _llama_like(
        fields, "qwen2", sizes, windows=_qwen_windows(fields, sizes["layers"]), qkv_bias=True
    )


def _read_qwen3(fields: _Fields) -> DecoderSpec:
    sizes = _sizes(fields, head_dim=128)
    bias = fields.flag("attention_bias", False)
    return _llama_like(
        fields,
        "qwen3",
        sizes,
        windows=_qwen_windows(fields, sizes["layers"]),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def _qwen_windows(fields: _Fields, layers: int) -> tuple[int, ...]:
    """Layers from ``max_window_layers`` on have the window, and only if ``use_sliding_window``."""
    if not fields.flag("use_sliding_window", False):
        return (0,) * layers
    window = fields.integer("sliding_window", 4096)
    first = fields.integer("max_window_layers", 28)
    sliding = (index >= first for index in range(layers))
    return _windows(fields, window, layers, sliding)


def _read_gemma3(fields: _Fields) -> DecoderSpec:
    sizes = _sizes(fields, heads=8, kv_heads=4, head_dim=256, vocab_size=262_208, context=131_072)
    act = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    if fields.text(act, "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise fields.invalid(act, "gelu_pytorch_tanh")
    pattern = fields.integer("sliding_window_pattern", 6)
    sliding = ((index + 1) % pattern > 0 for index in range(sizes["layers"]))
    bias = fields.flag("attention_bias", False)
    capped = fields.has("final_logit_softcapping")
    return DecoderSpec(
        family="gemma3",
        windows=_windows(fields, fields.integer("sliding_window", 4096), sizes["layers"], sliding),
        rope=_config_rope(fields, sizes["head_dim"], kind="full_attention", theta=1e6),
        local_rope=_local_rope(fields, sizes["head_dim"]),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        activation="gelu_tanh",
        norm_offset=1.0,
        embedding_scale=sizes["hidden"] ** 0.5,
        logit_softcap=fields.number("final_logit_softcapping") if capped else 0.0,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        post_norms=True,
        tied_head=fields.flag("tie_word_embeddings", True),
        **sizes,
    )


def _windows(fields: _Fields, window: int, layers: int, sliding: Iterable[bool]) -> tuple[int, ...]:
    """Return the window per layer; ``layer_types``, where given, overrules the family's rule."""
    if not fields.has("layer_types"):
        return tuple(window if slides else 0 for slides in sliding)
    sizes = {"sliding_attention": window, "full_attention": 0}
    types = fields.items("layer_types")
    if len(types) != layers or not all(kind in sizes for kind in types):
        raise fields.invalid("layer_types", f"{layers} of {sorted(sizes)}")
    return tuple(sizes[kind] for kind in types)


def _config_rope(
    fields: _Fields, head_dim: int, *, kind: str = "", theta: float = 10_000.0
) -> Rope:
    """Read ``rope_parameters`` (per layer ``kind`` in gemma3), or the older pair of fields."""
    if fields.has("rope_parameters"):
        table = fields.table("rope_parameters")
        if kind and kind in table:
            table = _Fields(table, "config.json: rope_parameters").table(kind)
        rope = _Fields(table, "config.json: rope_parameters")
        theta = rope.number("rope_theta", theta)
    else:
        old = fields.table("rope_scaling") if fields.has("rope_scaling") else {}
        rope = _Fields(old, "config.json: rope_scaling")
        theta = fields.number("rope_theta", theta)
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported("config.json: partial_rotary_factor is not supported")
    return Rope(theta, _config_divisors(rope, theta, head_dim))


def _local_rope(fields: _Fields, head_dim: int) -> Rope:
    if fields.has("rope_parameters"):
        return _config_rope(fields, head_dim, kind="sliding_attention", theta=1e4)
    return Rope(fields.number("rope_local_base_freq", 1e4))


def _config_divisors(rope: _Fields, theta: float, head_dim: int) -> tuple[float, ...]:
    name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(name, "default")
    if kind == "default":
        return ()
    if kind == "linear":
        return (rope.number("factor"),) * (head_dim // 2)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.invalid("high_freq_factor", "above low_freq_factor")
        return llama3_divisors(
            theta,
            head_dim,
            factor=rope.number("factor"),
            low=low,
            high=high,
            context=rope.number("original_max_position_embeddings"),
        )
    raise _unsupported(f"config.json: rope type {kind!r}; supported: default, linear, llama3")


_CONFIG_READERS: Final = {
    "llama": _read_llama,
    "mistral": _read_mistral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
    "gemma3_text": _read_gemma3,
}


# ---- GGUF --------------------------------------------------------------------------------------

_GGUF_ARCHITECTURES: Final = ("llama", "qwen2", "qwen3", "gemma3")
_GEMMA3_27B_LAYERS: Final = 62
"""The one gemma3 size whose query scale is not 1/sqrt(head_dim); GGUF does not store the scale."""


def _read_gguf(fields: _Fields, arch: str, file: GgufFile) -> DecoderSpec:
    hidden = fields.integer("embedding_length")
    heads = fields.integer("attention.head_count", most=4096)
    layers = fields.integer("block_count", most=4096)
    head_dim = fields.integer("attention.key_length", hidden // heads, most=4096)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.invalid("attention.value_length", f"equal to key_length {head_dim}")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.invalid("rope.dimension_count", f"the whole head ({head_dim})")
    gemma = arch == "gemma3"
    rope = _gguf_rope(fields, head_dim, file, 1e6 if gemma else 1e4)
    local = Rope(fields.number("rope.freq_base_swa", 1e4)) if gemma else rope
    widened = gemma and layers == _GEMMA3_27B_LAYERS
    capped = fields.has("final_logit_softcapping")
    return DecoderSpec(
        family=arch,
        layers=layers,
        hidden=hidden,
        intermediate=fields.integer("feed_forward_length"),
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=_rows(file, "token_embd.weight"),
        context=fields.integer("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        windows=_gguf_windows(fields, layers) if gemma else (0,) * layers,
        rope=rope,
        local_rope=local,
        attention_scale=(hidden / heads if widened else head_dim) ** -0.5,
        activation="gelu_tanh" if gemma else "silu",
        embedding_scale=hidden**0.5 if gemma else 1.0,
        logit_softcap=fields.number("final_logit_softcapping") if capped else 0.0,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        ffn_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=arch in ("qwen3", "gemma3"),
        post_norms=gemma,
        tied_head="output.weight" not in file.tensors,
    )


def _rows(file: GgufFile, name: str) -> int:
    if name not in file.tensors:
        raise TuringError(Code.INVALID, f"{file.path.name}: lacks tensor {name!r}", param="model")
    return file.tensors[name].shape[0]


def _gguf_windows(fields: _Fields, layers: int) -> tuple[int, ...]:
    window = fields.integer("attention.sliding_window")
    pattern = fields.integer("attention.sliding_window_pattern", 6)
    return tuple(window if (index + 1) % pattern else 0 for index in range(layers))


def _gguf_rope(fields: _Fields, head_dim: int, file: GgufFile, theta: float) -> Rope:
    theta = fields.number("rope.freq_base", theta)
    kind = fields.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise fields.invalid("rope.scaling.type", "none or linear")
    divisors: tuple[float, ...] = ()
    if kind == "linear":
        divisors = (fields.number("rope.scaling.factor"),) * (head_dim // 2)
    if "rope_freqs.weight" in file.tensors:  # how converters store the llama3 rule
        divisors = _stored_divisors(file, head_dim)
    return Rope(theta, divisors)


def _stored_divisors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    info = file.tensors["rope_freqs.weight"]
    if info.kind != "F32" or info.shape != (head_dim // 2,):
        raise TuringError(
            Code.INVALID,
            f"{file.path.name}: rope_freqs.weight is {info.kind} {info.shape},"
            f" not F32 ({head_dim // 2},)",
            param="model",
        )
    divisors = tuple(file.data(info.name).view("<f4").tolist())
    if not all(0 < divisor < math.inf for divisor in divisors):
        raise TuringError(
            Code.INVALID, f"{file.path.name}: rope_freqs.weight is not positive", param="model"
        )
    return divisors
