"""The tokens of one choice to the events that fronts render: detokenise, then stop strings.

Each stage takes the text that the stage before it released and may hold some of it back; parsers
of reasoning and tool calls come behind the stop strings.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from turing_gateway.call import Call, Event, Finish, TextDelta, TokenInfo
from turing_gateway.text.detokenize import Detokenizer
from turing_gateway.text.stops import StopScanner
from turing_gateway.text.tokenizer import Tokenizer
from turing_protocol.codec import unpack, unpack_floats
from turing_protocol.messages import Finished, ModelInfo, Reason, TokenLogprobs


class _Received(NamedTuple):
    """A token whose text is not released yet: it lies before character ``end`` of the answer."""

    id: int
    end: int
    info: TokenInfo | None


class TextStream:
    """Turns what an engine sends for one choice into events, ending with ``Finish``.

    Every token is in ``ids`` (and, when log-probabilities are asked, ``tokens``) of exactly one
    ``TextDelta``: the one that completes its text, or the last one. Joined, the ``data`` of all
    tokens are the bytes of the text, so a token that is not shown has ``b""``. After ``stopped``
    the engine is to be told to abort; ``finish`` still is to be called.
    """

    def __init__(
        self, tokenizer: Tokenizer, call: Call, info: ModelInfo, *, choice: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._choice = choice
        self._logprobs = call.sampling.logprobs >= 0
        self._end_ids = _end_ids(call, info)
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special=call.skip_special_tokens,
            # A raw prompt or a continued message goes on in mid-text: there the space is real.
            strip_space=tokenizer.strips_space and _starts_text(call),
        )
        self._stops = StopScanner(call.stop, include=call.include_stop)
        self._waiting: deque[_Received] = deque()
        self._decoded = 0
        self._released = 0
        self._received = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string matched, so that nothing more will be shown."""
        return self._stops.matched is not None

    def feed(self, ids: Sequence[int], logprobs: tuple[TokenLogprobs, ...] = ()) -> list[Event]:
        """Take new tokens (with one ``TokenLogprobs`` each if asked) and return what they show."""
        text = "".join(self._advance(ids, logprobs))
        self._released += len(text)
        return list(self._deliver(text)) if text else []

    def finish(self, finished: Finished) -> list[Event]:
        """Return the rest and ``Finish``. A half character at the end is dropped.

        After ``stopped`` the reason is ``stop`` and the output tokens are those received until
        then, whatever ``finished`` says, so a caller that aborted may fill in what it knows.
        """
        text = self._stops.close()
        self._released = self._decoded + 1
        rest = list(self._deliver(text)) if text or self._waiting else []
        return [*rest, self._finish(finished)]

    def _advance(self, ids: Sequence[int], logprobs: tuple[TokenLogprobs, ...]) -> Iterator[str]:
        for index, token in enumerate(ids):
            if self.stopped:
                return
            text, data = ("", b"") if token in self._end_ids else self._detokenizer.feed(token)
            self._received += 1
            self._decoded += len(text)
            info = self._describe(token, data, logprobs[index]) if self._logprobs else None
            end = self._decoded + self._detokenizer.pending
            self._waiting.append(_Received(token, end, info))
            yield self._stops.feed(text)

    def _deliver(self, text: str) -> Iterator[TextDelta]:
        out: list[_Received] = []
        while self._waiting and self._waiting[0].end <= self._released:
            out.append(self._waiting.popleft())
        infos = tuple(token.info for token in out if token.info is not None)
        yield TextDelta(self._choice, text, tuple(token.id for token in out), infos)

    def _describe(self, token: int, data: bytes, logprobs: TokenLogprobs) -> TokenInfo:
        top = zip(unpack(logprobs.top_ids), unpack_floats(logprobs.top), strict=True)
        alternatives = tuple((self._tokenizer.token_bytes(other), value) for other, value in top)
        return TokenInfo(token, data, logprobs.logprob, alternatives)

    def _finish(self, finished: Finished) -> Finish:
        by_stop = self.stopped or finished.reason is Reason.STOP
        return Finish(
            choice=self._choice,
            reason="stop" if by_stop else "length",
            stop=self._stops.matched,
            prompt_tokens=finished.prompt,
            cached_tokens=finished.cached,
            output_tokens=self._received if self.stopped else finished.output,
            timings=finished.timings,
        )


def _end_ids(call: Call, info: ModelInfo) -> frozenset[int]:
    """Return the tokens that end this answer and are not to be shown."""
    if call.include_stop:
        return frozenset()
    eos: Iterable[int] = () if call.sampling.ignore_eos else info.eos_ids
    return frozenset((*eos, *call.sampling.stop_ids))


def _starts_text(call: Call) -> bool:
    return call.prompt is None and not call.template.continue_final_message
