"""Bodies of Ollama's requests, as one msgspec decode checks them.

Unknown fields are ignored and ``null`` means absent. ``options`` stay a dictionary here: which of
them have an effect is settled in ``ollama_call``.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from turing_gateway.fronts.openai_types import (
    Logprobs,
    Penalty,
    StopString,
    StopStrings,
    Unit,
)
from turing_gateway.headers import ControlsBody


class Options(Struct, kw_only=True):
    """The ``options`` that have an effect here; ``None`` stands for the API's default."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    top_p: Unit | None = None
    min_p: Unit | None = None
    typical_p: float | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    num_predict: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    num_ctx: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop: StopString | StopStrings | None = None


class FunctionCallBody(Struct, kw_only=True):
    """What an assistant called."""

    name: str
    arguments: dict[str, Any] = {}


class ToolCallBody(Struct, kw_only=True):
    """One call of an assistant message of the history."""

    function: FunctionCallBody
    id: str | None = None


class MessageBody(Struct, kw_only=True):
    """One turn."""

    role: Annotated[str, Meta(min_length=1)]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class FunctionBody(Struct, kw_only=True):
    """A function that may be called."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Struct, kw_only=True):
    """A tool; its ``type`` can only be a function."""

    function: FunctionBody


class GenerationBody(Struct, kw_only=True):
    """What ``/api/chat`` and ``/api/generate`` share."""

    model: str = ""
    turing: ControlsBody | None = None
    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    truncate: bool | None = None
    shift: bool | None = None


class ChatBody(GenerationBody, kw_only=True):
    """``POST /api/chat``."""

    messages: list[MessageBody] | None = None
    tools: list[ToolBody] | None = None


class GenerateBody(GenerationBody, kw_only=True):
    """``POST /api/generate``."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[Any] | None = None


class ModelBody(Struct, kw_only=True):
    """A request that names a model; ``name`` is the older spelling."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None

    @property
    def asked(self) -> str:
        """The model's name as the client wrote it; empty when it did not."""
        return self.model or self.name or ""


class EmbedBody(ModelBody, kw_only=True):
    """``POST /api/embed`` (``input``) and ``POST /api/embeddings`` (``prompt``)."""

    input: str | list[str] | None = None
    prompt: str | None = None
