"""The protocol-neutral request and reply that every API front and parser meets."""

from typing import Any, Literal

import msgspec

from turing_protocol.errors import TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Timings
from turing_protocol.sampling import Constraint, Knobs, Sampling


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content: ``kind`` is ``text``; others are refused."""

    kind: str
    text: str = ""


class ToolCall(msgspec.Struct, frozen=True):
    """A function call that an assistant message of the history made; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; ``parameters`` is its JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model may, must or must not call tools.

    ``mode`` is ``auto``, ``none``, ``required`` (at least one call, of any tool) or ``named``
    (exactly the tool ``name``). The last two are forced by a grammar, as are the arguments of
    strict tools. ``parallel`` allows more than one call in an answer.
    """

    mode: str = "auto"
    name: str = ""
    parallel: bool = True

    @property
    def forced(self) -> bool:
        """Whether the answer has to be a tool call."""
        return self.mode in ("required", "named")


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """How messages become a prompt."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: dict[str, Any] = {}
    """Extra variables for the chat template (``chat_template_kwargs``)."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request, whatever API it came through.

    Exactly one of ``messages`` and ``prompt`` is given; ``prompt`` is raw text or token ids.
    ``sampling.max_tokens`` may be ``None`` here through ``max_tokens``: the generator resolves it
    to what is left of the context. ``sampling.seed`` is filled in by the generator when ``seed`` is
    ``None``.
    """

    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    add_special_tokens: bool = True
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    template: Template = Template()
    format: Constraint | None = None
    format_field: str = "response_format"
    """The field of the request that ``format`` was read from; refusals name it."""
    strict: bool = False
    """Refuse the call where its answer would come with warnings that are known before it begins."""
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    clamp: bool = False
    """Cut ``max_tokens`` to what fits, where it would be refused otherwise."""
    context: int | None = None
    """Longest prompt + output in tokens, where it is to be less than the engine could take."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the matched stop string or stop token in the text."""
    skip_special_tokens: bool = True
    knobs: Knobs = Knobs()
    lane: Lane = Lane.INTERACTIVE
    adapter: str = ""
    effort: str = ""
    """How much the model may think: ``none`` … ``max``; empty is the model's own habit."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning; ``None`` is what ``effort`` stands for."""
    choices: int = 1
    stream: bool = False
    request_id: str = ""
    salt: str = ""
    """What isolates this caller's prefix cache (tenant and ``cache_salt``)."""
    session: str = ""
    """A conversation whose calls should meet at one engine; empty: equal prompt beginnings do."""


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """One generated token: its bytes, raw log-probability, and alternatives (bytes, logprob)."""

    id: int
    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A choice was taken up by an engine; always its first event unless it failed."""

    choice: int
    prompt_tokens: int
    cached_tokens: int
    engine: str
    sparsity: float = 0.0
    svd_kv: int = 0
    draft_tokens: int = 0
    kv_utilization: float = 0.0
    queue_depth: int = 0
    warnings: tuple[str, ...] = ()
    """What is known now of why the answer may not be what was asked for."""


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """More text of the answer, always whole characters. ``tokens`` only when logprobs are asked."""

    choice: int
    text: str
    ids: tuple[int, ...] = ()
    tokens: tuple[TokenInfo, ...] = ()


class ThinkDelta(msgspec.Struct, frozen=True, gc=False):
    """More text of the model's reasoning."""

    choice: int
    text: str
    ids: tuple[int, ...] = ()


class ToolDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of tool call ``index``; ``id`` and ``name`` come with the first piece only.

    Joined, the ``arguments`` of a call are a JSON object as the model wrote it, unless the answer
    was cut inside of it.
    """

    choice: int
    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    ids: tuple[int, ...] = ()


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """A choice ended well. ``reason`` is ``stop``, ``length`` or ``tool_calls``.

    It is ``tool_calls`` exactly when there are calls and the last one is complete.

    ``stop`` is the stop string that matched, if one did.
    """

    choice: int
    reason: str
    stop: str | None = None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    timings: Timings = Timings()
    warnings: tuple[str, ...] = ()
    """Those of ``Begin``, and what came up since."""


class Failure(msgspec.Struct, frozen=True):
    """A choice failed; nothing follows for it."""

    choice: int
    error: TuringError


Outlook = Literal["admit", "wait", "429", "503", "never"]
"""``wait`` is admitted to the engine's queue; a number is the status of the refusal."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a call that came now; nothing is booked for it."""

    verdict: Outlook
    reason: str = ""
    """Why it is not simply admitted."""
    retry_after_ms: int = 0
    engine: str = ""
    prompt_tokens: int
    max_tokens: int | None = None
    """Output tokens that would be booked for each choice."""
    pages: int | None = None
    """Pages of KV memory that all choices would be booked with."""
    pages_booked: int | None = None
    """Pages that are booked on the engine already."""
    pages_total: int | None = None
    queue_ahead: int | None = None
    """Sequences that wait on the engine."""
    expected_ttft_ms: float | None = None
    """Mean time to the first token of the engine's last minute, its queue included; ``None``
    where it answered nothing."""


Event = Begin | TextDelta | ThinkDelta | ToolDelta | Finish | Failure
