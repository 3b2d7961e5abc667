"""The tokens of one choice to the events that fronts render.

The stages are detokenise → stop strings → reasoning → tool calls. Each takes the text that the
stage before it released and may hold some of it back.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from turing_gateway.call import (
    Call,
    Event,
    Finish,
    TextDelta,
    ThinkDelta,
    TokenInfo,
    ToolDelta,
)
from turing_gateway.text.answer import AnswerParser, Reading
from turing_gateway.text.detokenize import Detokenizer
from turing_gateway.text.pieces import Kind, Piece
from turing_gateway.text.stops import StopScanner
from turing_gateway.text.tokenizer import Tokenizer
from turing_gateway.text.tools.scanner import Scanner
from turing_protocol.codec import unpack, unpack_floats
from turing_protocol.messages import Finished, ModelInfo, Reason, TokenLogprobs

_PLAIN = Reading()


class _Received(NamedTuple):
    """A token whose text is not released yet: it lies before character ``end`` of the answer."""

    id: int
    end: int
    info: TokenInfo | None


class TextStream:
    """Turns what an engine sends for one choice into events, ending with ``Finish``.

    Every token is in ``ids`` of exactly one delta: the one that completes its text, a later one
    when that is not shown, or the last one. When log-probabilities are asked, those of the answer's
    text, not of reasoning and calls, are in ``tokens``; joined, their ``data`` are the bytes of the
    text, so a token that is not shown has ``b""``. After ``stopped`` the engine is to be told to
    abort; ``finish`` still is to be called. ``tools`` reads tool calls.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        call: Call,
        info: ModelInfo,
        *,
        choice: int = 0,
        reading: Reading = _PLAIN,
        tools: Scanner | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._choice = choice
        self._logprobs = call.sampling.logprobs >= 0
        self._end_ids = _end_ids(call, info)
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special=call.skip_special_tokens,
            visible=reading.visible,
            # A raw prompt or a continued message goes on in mid-text: there the space is real.
            strip_space=tokenizer.strips_space and _starts_text(call),
        )
        self._stops = StopScanner(call.stop, include=call.include_stop)
        self._parser = AnswerParser(reading, tools)
        self._budget = reading.budget
        self.end_ids = reading.end_ids
        """What ``force_end`` adds to the answer."""
        self._waiting: deque[_Received] = deque()
        self._out: list[_Received] = []
        self._decoded = 0
        self._released = 0
        self._thought = 0
        self._over = False
        self.received = 0
        """Tokens taken so far: all that were fed, but for those behind a stop or a spent budget."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string matched, so that nothing more will be shown."""
        return self._stops.matched is not None

    @property
    def spent(self) -> bool:
        """Whether the model still reasons with its budget used up: the end has to be forced."""
        if self._budget is None or self._over:
            return False
        return self._parser.thinking and self.received >= self._budget

    def feed(self, ids: Sequence[int], logprobs: tuple[TokenLogprobs, ...] = ()) -> list[Event]:
        """Take new tokens (with one ``TokenLogprobs`` each if asked) and return what they show."""
        events: list[Event] = []
        for index, token in enumerate(ids):
            if self.stopped or self.spent:
                break
            events += self._feed(token, logprobs[index] if self._logprobs else None)
        return _merged(events)

    def force_end(self) -> list[Event]:
        """Take the end tag that the server puts where the budget is spent."""
        return _merged([event for token in self.end_ids for event in self._feed(token, None)])

    def finish(self, finished: Finished) -> list[Event]:
        """Return the rest and ``Finish``. A half character at the end is dropped.

        After ``stopped`` the reason is ``stop`` and the output tokens are those received until
        then, whatever ``finished`` says, so a caller that aborted may fill in what it knows.
        """
        pieces = [*self._parser.feed(self._stops.close()), *self._parser.close()]
        rest = [*self._deliver(pieces), *self._flush()]
        return [*_merged(rest), self._finish(finished)]

    def _feed(self, token: int, logprobs: TokenLogprobs | None) -> Iterator[Event]:
        text = self._stops.feed(self._receive(token, logprobs))
        return self._deliver(self._parser.feed(text))

    def _receive(self, token: int, logprobs: TokenLogprobs | None) -> str:
        self._over = token in self._end_ids
        text, data = ("", b"") if self._over else self._detokenizer.feed(token)
        self.received += 1
        self._decoded += len(text)
        info = self._describe(token, data, logprobs) if logprobs is not None else None
        self._waiting.append(_Received(token, self._decoded + self._detokenizer.pending, info))
        return text

    def _describe(self, token: int, data: bytes, logprobs: TokenLogprobs) -> TokenInfo:
        top = zip(unpack(logprobs.top_ids), unpack_floats(logprobs.top), strict=True)
        alternatives = tuple((self._tokenizer.token_bytes(other), value) for other, value in top)
        return TokenInfo(token, data, logprobs.logprob, alternatives)

    def _deliver(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        for piece in pieces:
            self._released += piece.size
            self._release(piece.kind)
            if piece.text:
                yield self._event(piece)

    def _release(self, kind: Kind) -> None:
        """Move the tokens whose text is out to those that go with the next event."""
        while self._waiting and self._waiting[0].end <= self._released:
            token = self._waiting.popleft()
            self._out.append(token if kind is Kind.TEXT else token._replace(info=None))
            self._thought += kind is Kind.THINK

    def _event(self, piece: Piece) -> Event:
        out, self._out = self._out, []
        ids = tuple(token.id for token in out)
        index = self._parser.calls - 1
        match piece.kind:
            case Kind.TEXT:
                infos = tuple(token.info for token in out if token.info is not None)
                return TextDelta(self._choice, piece.text, ids, infos)
            case Kind.THINK:
                return ThinkDelta(self._choice, piece.text, ids)
            case Kind.CALL:
                return ToolDelta(self._choice, index, _new_id(), piece.text, "", ids)
            case Kind.ARGUMENTS:
                return ToolDelta(self._choice, index, arguments=piece.text, ids=ids)

    def _flush(self) -> Iterator[Event]:
        """Yield the tokens that no text has taken along."""
        kind = Kind.THINK if self._parser.thinking else Kind.TEXT
        self._released = self._decoded + 1
        self._release(kind)
        if self._out:
            yield self._event(Piece(kind, "", 0))

    def _finish(self, finished: Finished) -> Finish:
        by_stop = self.stopped or finished.reason is Reason.STOP
        reason = "stop" if by_stop else "length"
        return Finish(
            choice=self._choice,
            reason="tool_calls" if self._parser.called else reason,
            stop=self._stops.matched,
            prompt_tokens=finished.prompt,
            cached_tokens=finished.cached,
            output_tokens=self.received if self.stopped else finished.output,
            reasoning_tokens=self._thought,
            timings=finished.timings,
            warnings=finished.warnings,
        )


def _merged(events: Sequence[Event]) -> list[Event]:
    """Join neighbours of one kind. A call's first event stays alone, as OpenAI's layout has it."""
    merged: list[Event] = []
    for event in events:
        joined = _joined(merged[-1], event) if merged else None
        if joined is None:
            merged.append(event)
        else:
            merged[-1] = joined
    return merged


def _joined(one: Event, other: Event) -> Event | None:
    match one, other:
        case TextDelta(), TextDelta():
            tokens = one.tokens + other.tokens
            return replace(one, text=one.text + other.text, ids=one.ids + other.ids, tokens=tokens)
        case ThinkDelta(), ThinkDelta():
            return replace(one, text=one.text + other.text, ids=one.ids + other.ids)
        case ToolDelta(name=""), ToolDelta(name=""):
            arguments = one.arguments + other.arguments
            return replace(one, arguments=arguments, ids=one.ids + other.ids)
        case _:
            return None


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _end_ids(call: Call, info: ModelInfo) -> frozenset[int]:
    """Return the tokens that end this answer and are not to be shown.

    A constrained answer ends where its grammar does: what an engine sends of it is all text.
    """
    if call.include_stop or call.format is not None:
        return frozenset()
    eos: Iterable[int] = () if call.sampling.ignore_eos else info.eos_ids
    return frozenset((*eos, *call.sampling.stop_ids))


def _starts_text(call: Call) -> bool:
    return call.prompt is None and not call.template.continue_final_message
