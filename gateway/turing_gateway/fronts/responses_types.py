"""Bodies and items of OpenAI's Responses API, as msgspec checks them.

Unknown fields are ignored and ``null`` means absent: a server that keeps nothing has no use for
many. Fields typed ``Any`` exist to be refused: see ``UNSERVED``.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from turing_gateway.fronts.openai_types import CacheSalt, Effort, FunctionName, Logprobs, Positive
from turing_gateway.headers import ControlsBody

LOGPROBS = "message.output_text.logprobs"
"""The value of ``include`` that asks for log-probabilities."""


class InputText(Struct, tag_field="type", tag="input_text"):
    """Text for the model."""

    text: str


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of the model; what it was annotated with is made anew, never read."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class Refusal(Struct, tag_field="type", tag="refusal"):
    """A model's refusal in the history."""

    refusal: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    """A picture; refused by text models."""


class InputFile(Struct, tag_field="type", tag="input_file"):
    """A file; refused by text models."""


class InputAudio(Struct, tag_field="type", tag="input_audio"):
    """A sound; refused by text models."""


PartBody = InputText | OutputText | Refusal | InputImage | InputFile | InputAudio


class MessageInput(Struct, tag_field="type", tag="message"):
    """One turn; the only item whose ``type`` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[PartBody]


class CallInput(Struct, tag_field="type", tag="function_call"):
    """A call that the model made."""

    call_id: str
    name: str
    arguments: str


class OutputInput(Struct, tag_field="type", tag="function_call_output"):
    """What a call returned."""

    call_id: str
    output: str | list[PartBody]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning as the model wrote it."""

    text: str


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    """Reasoning as another model retold it."""

    text: str


class ReasoningInput(Struct, tag_field="type", tag="reasoning"):
    """Reasoning that comes back; nothing is left of what only its maker can decrypt."""

    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None


Item = MessageInput | CallInput | OutputInput | ReasoningInput
ITEMS: dict[str, type[Item]] = {
    "message": MessageInput,
    "function_call": CallInput,
    "function_call_output": OutputInput,
    "reasoning": ReasoningInput,
}
"""Every kind of item that ``input`` may hold, by its ``type``."""


class FunctionTool(Struct, tag_field="type", tag="function", kw_only=True):
    """A function that may be called; the kinds that OpenAI runs itself do not exist here."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Struct, tag_field="type", tag="function"):
    """``tool_choice`` that names one function."""

    name: str


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    """``tool_choice`` that narrows the tools."""

    tools: Annotated[list[NamedTool], Meta(min_length=1)]
    mode: Literal["auto", "required"] = "auto"


Choice = Literal["auto", "none", "required"] | NamedTool | AllowedTools


class PlainFormat(Struct, tag_field="type", tag="text"):
    """Free text."""


class ObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class SchemaFormat(Struct, tag_field="type", tag="json_schema", kw_only=True):
    """JSON that fits a schema."""

    name: Annotated[str, Meta(min_length=1)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextBody(Struct, kw_only=True):
    """How the text of the answer is to be."""

    format: PlainFormat | ObjectFormat | SchemaFormat | None = None


class ReasoningBody(Struct, kw_only=True):
    """How much to think. Summaries are not made: reasoning is answered as it is."""

    effort: Effort | None = None


class StreamOptions(Struct, kw_only=True):
    """What a stream carries beside text; obfuscation is never added."""

    include_obfuscation: bool | None = None


class ResponsesBody(Struct, kw_only=True):
    """``POST /v1/responses``. The items of ``input`` are checked one by one, as ``ITEMS``."""

    input: Annotated[str, Meta(min_length=1)] | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    include: list[str] | None = None
    top_logprobs: Logprobs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    cache_salt: CacheSalt | None = None
    turing: ControlsBody | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: Any = None
    truncation: Any = None


UNSERVED = ("previous_response_id", "conversation", "prompt", "background", "truncation")
"""Fields that need what this server does not keep, or would change the prompt: refused."""
