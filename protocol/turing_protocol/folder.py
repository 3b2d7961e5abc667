"""A model's facts and files as a folder, which serves gateways that no engine is near."""

from typing import Any

import msgspec

from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo

INFO_FILE = "model.json"
"""Holds the ``ModelInfo`` as a JSON object."""

ASSET_FILES = (
    "tokenizer.json",
    "chat_template",
    "special_tokens",
    "generation_config",
    "metadata",
)
"""What an engine serves with every model; in a folder each is a file of that name."""

# On the wire the struct is an array; people who look into a file get names.
_Named: Any = msgspec.defstruct(
    "ModelInfo",
    [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(ModelInfo)
    ],
)


def info_to_json(info: ModelInfo) -> bytes:
    """Return ``info`` as a JSON object with one line per field."""
    return msgspec.json.format(msgspec.json.encode(msgspec.structs.asdict(info))) + b"\n"


def info_from_json(data: bytes) -> ModelInfo:
    """Return the ``ModelInfo`` of ``info_to_json``; anything else is ``Code.INVALID``."""
    try:
        named = msgspec.json.decode(data, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TuringError(Code.INVALID, f"{INFO_FILE} is not valid: {error}") from None
    return ModelInfo(**msgspec.structs.asdict(named))
