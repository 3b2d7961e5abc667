"""Bodies of OpenAI's generation requests, with vLLM's extras, as one msgspec decode checks them.

Unknown fields are ignored and ``null`` means absent. Fields typed ``Any`` exist to be refused: see
``PROMPT_UNSERVED`` and ``DECODE_UNSERVED``.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from turing_gateway.headers import ControlsBody
from turing_protocol.sampling import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_PROMPTS = 256

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]
CacheSalt = Annotated[str, Meta(pattern=r"^[^@/\\\x00]{1,128}$(?!\n)")]
TokenIds = Annotated[list[Natural], Meta(min_length=1)]


class TextPart(Struct, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """An assistant's refusal in the history."""

    refusal: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """A picture; refused by text models."""

    image_url: Any


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """A sound; refused by text models."""

    input_audio: Any


class VideoPart(Struct, tag_field="type", tag="video_url"):
    """A film; refused by text models."""

    video_url: Any


class FilePart(Struct, tag_field="type", tag="file"):
    """A file; refused by text models."""

    file: Any


PartBody = TextPart | RefusalPart | ImagePart | AudioPart | VideoPart | FilePart


class FunctionCallBody(Struct):
    """What an assistant called; ``arguments`` is JSON text, some clients send the object."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCallBody(Struct):
    """One call of an assistant message of the history."""

    function: FunctionCallBody
    id: str = ""
    type: Literal["function"] = "function"


class MessageBody(Struct, kw_only=True):
    """One turn."""

    role: Annotated[str, Meta(min_length=1)]
    content: str | list[PartBody] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None


class FunctionBody(Struct, kw_only=True):
    """A function that may be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Struct):
    """A tool; only functions exist here."""

    type: Literal["function"]
    function: FunctionBody


class NamedFunction(Struct):
    """The function of a named choice."""

    name: str


class NamedChoice(Struct, tag_field="type", tag="function"):
    """``tool_choice`` that names one function."""

    function: NamedFunction


class AllowedTool(Struct):
    """One of the tools that may be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(Struct):
    """Which tools may be called, and whether one has to be."""

    tools: Annotated[list[AllowedTool], Meta(min_length=1)]
    mode: Literal["auto", "required"] = "auto"


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools"):
    """``tool_choice`` that narrows the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["auto", "none", "required"] | NamedChoice | AllowedChoice


class TextFormat(Struct, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, kw_only=True):
    """A schema and its name."""

    name: Annotated[str, Meta(min_length=1)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, kw_only=True):
    """vLLM's way to ask for a grammar; exactly one field is given."""

    json: dict[str, Any] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None


class StreamOptions(Struct, kw_only=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(Struct, kw_only=True):
    """What chat and text completions share."""

    model: str | None = None
    turing: ControlsBody | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIAS)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[Natural], Meta(max_length=MAX_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Natural | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: CacheSalt | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: str | None = None
    logits_processors: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    kv_transfer_params: Any = None
    stream_interval: Any = None
    priority: int | None = None


class ChatBody(SamplingBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: Annotated[list[ToolBody], Meta(min_length=1)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    documents: Any = None
    functions: Any = None
    function_call: Any = None
    echo: Any = None
    thinking_token_budget: Natural | None = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


class TextBody(SamplingBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | Natural | TokenIds]
    max_tokens: Natural | None = None
    logprobs: Logprobs | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_embeds: Any = None


PROMPT_UNSERVED = (
    "chat_template",
    "documents",
    "functions",
    "function_call",
    "truncate_prompt_tokens",
    "prompt_embeds",
)
"""Fields that would change the prompt and are not served: refused, by render endpoints too."""

DECODE_UNSERVED = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logits_processors",
    "allowed_token_ids",
    "bad_words",
    "use_beam_search",
    "prompt_logprobs",
    "kv_transfer_params",
    "stream_interval",
    "priority",
    "modalities",
    "audio",
    "web_search_options",
)
"""Fields that would change the answer and are not served: refused when generating."""

NEUTRAL: dict[str, Any] = {"stream_interval": 1, "priority": 0, "modalities": ["text"]}
"""Values of unserved fields that ask for what happens anyway, beside ``null`` and ``false``."""
