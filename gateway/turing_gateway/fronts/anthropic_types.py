"""Bodies and content blocks of Anthropic's Messages API, as one msgspec decode checks them.

Unknown fields are ignored and ``null`` means absent: clients send many that a local model has no
use for (``metadata``, ``cache_control``, ``context_management``). An unknown kind of block is an
error, for the model would answer as if it were not there.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from turing_gateway.headers import ControlsBody

MAX_STOPS = 256

Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$(?!\n)")]


class TextBlock(Struct, tag_field="type", tag="text"):
    """A piece of text."""

    text: str = ""


class ImageBlock(Struct, tag_field="type", tag="image"):
    """A picture; refused by text models."""


class DocumentBlock(Struct, tag_field="type", tag="document"):
    """A file; refused by text models."""


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning; ``signature`` is opaque and not checked when it comes back."""

    thinking: str = ""
    signature: str = ""


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning that only its maker can read: nothing is left of it."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    """What a tool returned."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


class ToolBody(Struct, kw_only=True):
    """A tool that the client runs. Those that Anthropic defines have another ``type``."""

    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolReference(Struct, tag_field="type", tag="tool_reference"):
    """The name of a tool."""

    name: str


class ToolDefinition(Struct, tag_field="type", tag="tool_definition"):
    """A tool in full."""

    definition: ToolBody


class ToolAddition(Struct, tag_field="type", tag="tool_addition"):
    """Makes a tool available from here on."""

    tool: ToolReference | ToolDefinition


class ToolRemoval(Struct, tag_field="type", tag="tool_removal"):
    """Takes a tool away from here on."""

    tool: ToolReference


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ToolAddition
    | ToolRemoval
)

Role = Literal["user", "assistant", "system"]


class Turn(Struct, kw_only=True):
    """One entry of ``messages``; some ``system`` turns end with the user turn they follow."""

    role: Role
    content: str | list[Block]
    clear_at: Literal["next_user_message", "never"] | None = None


class AutoChoice(Struct, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, tag_field="type", tag="any"):
    """Some tool must be called."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, tag_field="type", tag="tool"):
    """The named tool must be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, tag_field="type", tag="none"):
    """No tool may be called."""


class EnabledThinking(Struct, tag_field="type", tag="enabled"):
    """Think, at most ``budget_tokens`` tokens."""

    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Literal["summarized", "omitted"] | None = None


class AdaptiveThinking(Struct, tag_field="type", tag="adaptive"):
    """Think when it helps."""

    display: Literal["summarized", "omitted"] | None = None


class BetweenToolsThinking(Struct, tag_field="type", tag="between_tools"):
    """Think after tool results."""


class DisabledThinking(Struct, tag_field="type", tag="disabled"):
    """Do not think."""


class JsonFormat(Struct, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class PromptBody(Struct, kw_only=True):
    """What render endpoints take: everything may be left out that does not shape the prompt."""

    messages: Annotated[list[Turn], Meta(min_length=1)]
    model: str | None = None
    turing: ControlsBody | None = None
    max_tokens: Natural | None = None
    system: str | list[TextBlock] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: (
        EnabledThinking | AdaptiveThinking | BetweenToolsThinking | DisabledThinking | None
    ) = None
    output_config: OutputConfig | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Natural | None = None
    mcp_servers: list[Any] | None = None


class CountBody(PromptBody, kw_only=True):
    """``POST /v1/messages/count_tokens``."""

    model: str


class MessagesBody(CountBody, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: Natural
