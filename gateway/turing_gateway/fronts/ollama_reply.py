"""Ollama's answers: lines of a stream or one object, both from the same events."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec

from turing_gateway.call import (
    Begin,
    Event,
    Failure,
    Finish,
    TextDelta,
    ThinkDelta,
    TokenInfo,
    ToolCall,
    ToolDelta,
)
from turing_gateway.errors import ollama_error
from turing_gateway.fronts.base import Events
from turing_gateway.fronts.collect import Answer, warned
from turing_gateway.fronts.openai_reply import LOWEST, token_text
from turing_protocol.errors import TuringError

NDJSON = "application/x-ndjson"

_NS_PER_MS = 1_000_000


def now() -> str:
    """Return the time as ``moment`` does."""
    return moment(time.time())


def moment(seconds: float) -> str:
    """Return Unix time as RFC 3339 in UTC, always with a fraction: some clients insist on it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def line(reply: Any) -> bytes:
    """Return one line of a stream."""
    return msgspec.json.encode(reply) + b"\n"


def error_line(error: TuringError) -> bytes:
    """Return ``error`` as the last line of a stream whose status has been sent."""
    return ollama_error(error, "")[1] + b"\n"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What all objects of one answer share.

    ``model`` is the name as the client wrote it, ``begun`` the request's start by
    ``time.perf_counter_ns``.
    """

    model: str
    chat: bool
    begun: int
    logprobs: bool = False
    prompt: tuple[int, ...] | None = None
    """The prompt's ids where ``context`` is to be returned."""
    notes: tuple[str, ...] = ()

    def object(
        self,
        text: str = "",
        *,
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),
        tokens: Sequence[TokenInfo] = (),
        done: bool = False,
    ) -> dict[str, Any]:
        """Return one object; what is empty is left out but for the text."""
        key = "content" if self.chat else "response"
        piece: dict[str, Any] = {"role": "assistant"} if self.chat else {}
        piece[key] = text
        piece |= {"thinking": thinking} if thinking else {}
        piece |= {"tool_calls": calls} if calls else {}
        reply: dict[str, Any] = {"model": self.model, "created_at": now()}
        reply |= {"message": piece} if self.chat else piece
        reply["done"] = done
        if self.logprobs and tokens:
            reply["logprobs"] = [_logprob(token) for token in tokens]
        return reply

    def ending(self, finish: Finish, ids: Sequence[int], cut: int) -> dict[str, Any]:
        """Return the fields that only the last object has; durations are in nanoseconds.

        ``ids`` are the answer's tokens, ``cut`` counts tool calls that were not complete.
        """
        took = finish.timings
        fields: dict[str, Any] = {
            "done_reason": "length" if finish.reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self.begun,
            "load_duration": round(took.queue_ms * _NS_PER_MS),
            "prompt_eval_count": finish.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(took.prefill_ms),
            "eval_count": finish.output_tokens,
            "eval_duration": _nanoseconds(took.decode_ms),
        }
        if self.prompt is not None:
            fields["context"] = [*self.prompt, *ids]
        notes = [
            *self.notes,
            *finish.warnings,
            *[f"tool_calls: {cut} cut off and left out"] * bool(cut),
        ]
        return fields | warned(notes)


class Stream:
    """Writes the events of one call as lines; the last one is written with ``Finish``."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._ids: list[int] = []
        self._calls = Answer()
        self._sent = 0
        self._cut = 0

    @property
    def idle(self) -> bytes:
        """A line that says nothing, for times when there is nothing to say."""
        return line(self._shape.object())

    def write(self, event: Event) -> bytes:
        """Return the lines of ``event``; empty when the client sees nothing of it."""
        match event:
            case TextDelta(_, text, ids, tokens):
                self._ids += ids
                shown = text or (tokens and self._shape.logprobs)
                return self._flush() + (self._line(text, tokens=tokens) if shown else b"")
            case ThinkDelta(_, text, ids):
                self._ids += ids
                return self._flush() + (self._line(thinking=text) if text else b"")
            case ToolDelta():
                self._ids += event.ids
                done = self._flush() if event.name else b""
                self._calls.add(event)
                return done
            case Finish():
                return self._flush() + self._finish(event)
            case Failure():
                raise event.error
            case Begin():
                return b""

    def _line(self, text: str = "", **fields: Any) -> bytes:
        return line(self._shape.object(text, **fields))

    def _flush(self) -> bytes:
        """Return the tool calls that are complete now and not sent yet."""
        done = self._calls.calls[self._sent :]
        if not done:
            return b""
        calls, cut = _calls(done, self._sent)
        self._sent += len(done)
        self._cut += cut
        return self._line(calls=calls) if calls else b""

    def _finish(self, event: Finish) -> bytes:
        last = self._shape.object(done=True)
        return line(last | self._shape.ending(event, self._ids, self._cut))


async def whole(shape: Shape, first: Begin, events: Events) -> dict[str, Any]:
    """Return the answer as one object; a call that fails raises its error."""
    answer = Answer()
    ending: Finish | None = None
    async with aclosing(events):
        async for event in events:
            answer.add(event)
            if isinstance(event, Finish):
                ending = event
    if ending is None:
        raise TypeError(f"choice {first.choice} ended without a Finish")
    calls, cut = _calls(answer.calls, 0)
    reply = shape.object(
        answer.text, thinking=answer.thinking, calls=calls, tokens=answer.tokens, done=True
    )
    return reply | shape.ending(ending, answer.ids, cut)


def _calls(calls: Sequence[ToolCall], start: int) -> tuple[list[dict[str, Any]], int]:
    """Return whole calls, the first of which has index ``start``, and how many were cut off."""
    found = []
    for index, call in enumerate(calls, start):
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except msgspec.DecodeError:
            continue  # the token limit came in the middle of it
        function = {"index": index, "name": call.name, "arguments": arguments}
        found.append({"id": call.id, "function": function})
    return found, len(calls) - len(found)


def _logprob(token: TokenInfo) -> dict[str, Any]:
    top = [_entry(data, value) for data, value in token.top]
    return {**_entry(token.data, token.logprob), "top_logprobs": top}


def _entry(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(data), "logprob": max(logprob, LOWEST), "bytes": list(data)}


def _nanoseconds(milliseconds: float) -> int:
    # Clients divide by it, and a single token has no time between two.
    return max(1, round(milliseconds * _NS_PER_MS))
