"""Answers of Anthropic's Messages API: events to content blocks, in pieces or as a whole.

There is one way from events to blocks, ``Blocks``. A stream sends what it yields; a whole answer is
gathered from it as an SDK gathers a stream.
"""

from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from turing_gateway.call import (
    Begin,
    Call,
    Event,
    Failure,
    Finish,
    TextDelta,
    ThinkDelta,
    ToolDelta,
)
from turing_gateway.errors import anthropic_error
from turing_gateway.fronts.anthropic_types import TextBlock, ThinkingBlock, ToolUseBlock
from turing_gateway.fronts.base import Events
from turing_gateway.fronts.collect import warned
from turing_protocol.errors import TuringError

SIGNATURE = "turing"
"""Signs every thinking block. It proves nothing, but clients drop blocks without one."""

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Usage(Struct, kw_only=True):
    """Token counts; the three of the input add up to the prompt."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Reply(Struct, tag_field="type", tag="message", kw_only=True):
    """An answer, whole or at its beginning."""

    id: str
    role: str = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage
    turing: dict[str, list[str]] | UnsetType = UNSET


class TextPiece(Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingPiece(Struct, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignaturePiece(Struct, tag_field="type", tag="signature_delta"):
    """The last piece of a thinking block."""

    signature: str


class InputPiece(Struct, tag_field="type", tag="input_json_delta"):
    """More JSON text of a tool's input."""

    partial_json: str


Piece = TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """Begins an answer."""

    message: Reply


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    """Begins block ``index``; the one before has ended."""

    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """Goes on with block ``index``."""

    index: int
    delta: Piece


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """Ends block ``index``."""

    index: int


class Ending(Struct):
    """Why an answer ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """Tells the end of an answer; ``usage`` counts all of it."""

    delta: Ending
    usage: Usage
    turing: dict[str, list[str]] | UnsetType = UNSET


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """Ends a stream."""


Sent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class Blocks:
    """Turns the events of ``call``, which has one choice, into those of a message stream.

    Blocks are numbered 0, 1, 2 and never overlap; without text there is none. ``model`` is the name
    that the client used. With ``omit_thinking`` thinking blocks come signed but empty.
    """

    def __init__(self, call: Call, model: str, *, omit_thinking: bool = False) -> None:
        self._id = f"msg_{call.request_id}"
        self._model = model
        self._asked = call.max_tokens or 0
        self._omit = omit_thinking
        self._index = 0
        self._open: str | int | None = None
        """What the open block holds: text, thinking, or the tool call of that index."""

    def take(self, event: Event) -> list[Sent]:
        """Return what ``event`` adds; the error of a ``Failure`` is raised."""
        match event:
            case Begin():
                return [self._start(event)]
            case TextDelta(text=text):
                return self._piece("text", TextBlock(), TextPiece(text)) if text else []
            case ThinkDelta(text=text):
                piece = None if self._omit else ThinkingPiece(text)
                return self._piece("thinking", ThinkingBlock(), piece) if text else []
            case ToolDelta():
                return self._tool(event)
            case Finish():
                return [*self._close(), self._end(event), MessageStop()]
            case Failure():
                raise event.error

    def _start(self, begin: Begin) -> MessageStart:
        usage = _usage(begin, output=0)
        return MessageStart(Reply(id=self._id, model=self._model, content=[], usage=usage))

    def _tool(self, event: ToolDelta) -> list[Sent]:
        if self._open != event.index and not event.name:
            raise ValueError(f"a piece of tool call {event.index} came without its beginning")
        piece = InputPiece(event.arguments) if event.arguments else None
        return self._piece(event.index, ToolUseBlock(event.id, event.name, {}), piece)

    def _piece(
        self,
        kind: str | int,
        block: TextBlock | ThinkingBlock | ToolUseBlock,
        piece: Piece | None,
    ) -> list[Sent]:
        sent: list[Sent] = []
        if self._open != kind:
            sent += [*self._close(), BlockStart(self._index, block)]
            self._open = kind
        if piece is not None:
            sent.append(BlockDelta(self._index, piece))
        return sent

    def _close(self) -> list[Sent]:
        if self._open is None:
            return []
        sent: list[Sent] = [BlockStop(self._index)]
        if self._open == "thinking":
            sent.insert(0, BlockDelta(self._index, SignaturePiece(SIGNATURE)))
        self._open = None
        self._index += 1
        return sent

    def _end(self, finish: Finish) -> MessageDelta:
        usage = _usage(finish, output=finish.output_tokens)
        return MessageDelta(
            Ending(self._reason(finish), finish.stop), usage, **warned(finish.warnings)
        )

    def _reason(self, finish: Finish) -> str:
        if finish.stop is not None:
            return "stop_sequence"
        if finish.reason == "length" and finish.output_tokens < self._asked:
            return "model_context_window_exceeded"
        return _STOP_REASONS[finish.reason]


def _usage(counts: Begin | Finish, *, output: int) -> Usage:
    return Usage(
        input_tokens=counts.prompt_tokens - counts.cached_tokens,
        output_tokens=output,
        cache_read_input_tokens=counts.cached_tokens,
    )


async def gather(first: Begin, events: Events, blocks: Blocks) -> Reply:
    """Return the whole answer; a failure is raised."""
    whole = Gathered()
    async with aclosing(events):
        whole.add(blocks.take(first))
        async for event in events:
            whole.add(blocks.take(event))
    return whole.message


class Gathered:
    """Puts an answer together from what a stream of it would send."""

    message: Reply

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, sent: list[Sent]) -> None:
        """Take what comes next; ``message`` is whole after ``MessageStop``."""
        for one in sent:
            match one:
                case MessageStart(message):
                    self.message = message
                case BlockStart(content_block=block):
                    self.message.content.append(block)
                case BlockDelta(delta=piece):
                    self._piece(piece)
                case BlockStop():
                    self._fill()
                case MessageDelta(ending, usage, notes):
                    self.message.stop_reason = ending.stop_reason
                    self.message.stop_sequence = ending.stop_sequence
                    self.message.usage = usage
                    self.message.turing = notes
                case MessageStop():
                    pass

    def _piece(self, piece: Piece) -> None:
        block = self.message.content[-1]
        match piece:
            case TextPiece(text) | ThinkingPiece(text) | InputPiece(text):
                self._pieces.append(text)
            case SignaturePiece(signature) if isinstance(block, ThinkingBlock):
                block.signature = signature

    def _fill(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        match self.message.content[-1]:
            case TextBlock() as block:
                block.text = text
            case ThinkingBlock() as block:
                block.thinking = text
            case ToolUseBlock() as block:
                block.input = tool_input(text)


def tool_input(text: str) -> dict[str, Any]:
    """Return a tool's input from its JSON text.

    Text that was cut off by ``max_tokens`` is no object; the stop reason tells of that, and the
    input is empty, for the API knows none that is not an object.
    """
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def sse(sent: list[Sent]) -> bytes:
    """Return the bytes of events: each has its name beside its data, which SDKs need."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (_name(one), msgspec.json.encode(one)) for one in sent
    )


def error_event(error: TuringError, request_id: str) -> bytes:
    """Return ``error`` as the last event of a stream whose status has been sent."""
    return b"event: error\ndata: " + anthropic_error(error, request_id)[1] + b"\n\n"


def _name(sent: Sent) -> bytes:
    return str(sent.__struct_config__.tag).encode()
