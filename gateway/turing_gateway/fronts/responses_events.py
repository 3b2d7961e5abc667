"""What the Responses API answers with: the response, its items, and the events of a stream."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from turing_gateway.fronts.responses_types import OutputText, ReasoningText


class MessageItem(Struct, tag_field="type", tag="message", kw_only=True):
    """Text of the answer."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, tag_field="type", tag="reasoning", kw_only=True):
    """Reasoning, as the model wrote it; it may be sent back as it is."""

    id: str
    status: str
    summary: list[Any] = []
    content: list[ReasoningText]


class CallItem(Struct, tag_field="type", tag="function_call", kw_only=True):
    """A call of a function, which the client is to make."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | CallItem


class InputDetails(Struct):
    """Where the input's tokens came from."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    """What the output's tokens were."""

    reasoning_tokens: int


class Usage(Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failed(Struct):
    """Why an answer failed after it had begun."""

    message: str
    code: str = "server_error"


class Incomplete(Struct):
    """Why an answer is not whole."""

    reason: str = "max_output_tokens"


class Reply(Struct, kw_only=True):
    """A response. Beside the answer it repeats what was asked for, as SDKs expect."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: Failed | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: None = None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: Usage | None = None
    metadata: dict[str, str]
    turing: dict[str, list[str]] | UnsetType = UNSET


class Sent(Struct, tag_field="type", kw_only=True):
    """An event of the stream; numbered from 0 without a gap."""

    sequence_number: int = 0


class Whole(Sent, kw_only=True):
    """An event that carries all of the response as it is now."""

    response: Reply


class Created(Whole, tag="response.created"):
    """Begins a stream."""


class InProgress(Whole, tag="response.in_progress"):
    """The model has begun."""


class Completed(Whole, tag="response.completed"):
    """Ends a stream well."""


class CutOff(Whole, tag="response.incomplete"):
    """Ends a stream at its limit of tokens."""


class BrokenOff(Whole, tag="response.failed"):
    """Ends a stream that failed after its status had been sent."""


class ItemEvent(Sent, kw_only=True):
    """Tells of a whole item."""

    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    """Begins an item; the one before has ended."""


class ItemDone(ItemEvent, tag="response.output_item.done"):
    """Ends an item."""


class Located(Sent, kw_only=True):
    """Tells of a place inside of an item."""

    item_id: str
    output_index: int


class InPart(Located, kw_only=True):
    """Tells of the only part of an item's content."""

    content_index: int = 0


class PartAdded(InPart, tag="response.content_part.added", kw_only=True):
    """Begins a part."""

    part: OutputText | ReasoningText


class PartDone(InPart, tag="response.content_part.done", kw_only=True):
    """Ends a part."""

    part: OutputText | ReasoningText


class TextPiece(InPart, tag="response.output_text.delta", kw_only=True):
    """More text."""

    delta: str
    logprobs: list[Any]


class TextDone(InPart, tag="response.output_text.done", kw_only=True):
    """All of a part's text."""

    text: str
    logprobs: list[Any]


class ReasoningPiece(InPart, tag="response.reasoning_text.delta", kw_only=True):
    """More reasoning."""

    delta: str


class ReasoningDone(InPart, tag="response.reasoning_text.done", kw_only=True):
    """All of a part's reasoning."""

    text: str


class ArgumentsPiece(Located, tag="response.function_call_arguments.delta", kw_only=True):
    """More JSON text of a call's arguments."""

    delta: str


class ArgumentsDone(Located, tag="response.function_call_arguments.done", kw_only=True):
    """All of a call's arguments."""

    name: str
    arguments: str


Event = (
    Created
    | InProgress
    | ItemAdded
    | PartAdded
    | TextPiece
    | TextDone
    | ReasoningPiece
    | ReasoningDone
    | PartDone
    | ArgumentsPiece
    | ArgumentsDone
    | ItemDone
    | Completed
    | CutOff
    | BrokenOff
)
"""Every event that a stream may hold."""
