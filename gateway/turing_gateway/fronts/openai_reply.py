"""Pieces of OpenAI's answers: chunk bytes, log-probabilities, usage, errors inside a stream."""

import codecs
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec

from turing_gateway.call import Begin, Call, Event, Finish, TokenInfo
from turing_gateway.errors import envelope
from turing_gateway.fronts.base import Events
from turing_gateway.fronts.collect import Usage, warned, written
from turing_gateway.fronts.openai_types import SamplingBody, StreamOptions
from turing_protocol.errors import TuringError

DONE = b"data: [DONE]\n\n"
LOWEST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot carry (OpenAI's number)."""

encode = msgspec.json.encode
NULL = b"null"


class Identity(msgspec.Struct, frozen=True):
    """The fields that are equal in every chunk of an answer, in the order they are written."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


def identity(prefix: str, kind: str, call: Call, model: str | None, fingerprint: str) -> Identity:
    """Return the identity of an answer to ``call``; ``model`` is the name that the client used."""
    return Identity(
        id=f"{prefix}-{call.request_id}",
        object=kind,
        created=int(time.time()),
        model=model or call.model,
        system_fingerprint=fingerprint,
    )


class Chunks:
    """Builds the ``data:`` lines of one stream; only what changes is encoded per token.

    ``field`` is what a choice carries: ``delta`` or ``text``. When ``body`` asks for usage, every
    chunk has a ``usage`` field, null but for the last one (and running counts on demand).
    """

    def __init__(self, identity: Identity, field: str, body: SamplingBody) -> None:
        options = body.stream_options or StreamOptions()
        self.usage = Usage(body.n or 1)
        self.asked = options.include_usage or False
        self._running = self.asked and (options.continuous_usage_stats or False)
        self._head = b"data: " + encode(identity)[:-1] + b',"choices":['
        self._field = f',"{field}":'.encode()
        self._tail = b',"usage":null}\n\n' if self.asked else b"}\n\n"

    def choice(
        self,
        index: int,
        value: bytes,
        *,
        logprobs: bytes = NULL,
        finish: bytes = NULL,
        extra: bytes = b"",
        more: bytes = b"",
    ) -> bytes:
        """Return the chunk of choice ``index``. The rest is JSON.

        ``extra`` are further fields of the choice, ``more`` of the chunk, each with its comma.
        """
        return b"".join(
            (
                self._head,
                b'{"index":%d' % index,
                self._field,
                value,
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish,
                extra,
                b"}]",
                more,
                self._counts() if self._running else self._tail,
            )
        )

    def end(self) -> bytes:
        """Return the last chunk, which has no choice but the usage, if that was asked for."""
        if not self.asked:
            return b""
        return self._head + b'],"usage":' + encode(self.usage.openai()) + b"}\n\n"

    def _counts(self) -> bytes:
        return b',"usage":' + encode(self.usage.openai(running=True)) + b"}\n\n"


def field(name: str, value: Any) -> bytes:
    """Return one more field of a JSON object, with its comma."""
    return f',"{name}":'.encode() + encode(value)


def ending(finish: Finish) -> bytes:
    """Return the further fields of the chunk that ends a choice."""
    return b"".join(field(name, value) for name, value in warned(finish.warnings).items())


def sse(
    first: Begin,
    events: Events,
    write: Callable[[Event], bytes],
    end: Callable[[], bytes],
    request_id: str,
) -> AsyncGenerator[bytes, None]:
    """Return a stream's bytes: ``write`` of every event, ``end``, and ``[DONE]``.

    A failure becomes an error event, since the status has been sent; no finish reason follows it.
    """
    return written(
        first,
        events,
        write,
        end=lambda: end() + DONE,
        fail=lambda error: error_event(error) + DONE,
        request_id=request_id,
    )


def error_event(error: TuringError) -> bytes:
    """Return ``error`` as an event of a stream whose status has been sent."""
    return b"data: " + envelope(error) + b"\n\n"


def chat_logprobs(tokens: Sequence[TokenInfo]) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of chat: one entry per token, alternatives inside."""
    content = [
        {
            **_entry(token.data, token.logprob),
            "top_logprobs": [_entry(data, value) for data, value in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(data: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(data),
        "logprob": max(logprob, LOWEST),
        "bytes": list(data),
    }


class TextLogprobs:
    """``choices[].logprobs`` of text completions: four parallel lists, offsets in characters.

    One object per choice and stream: offsets go on from one call to the next.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def layout(self, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
        """Return the lists for the next ``tokens``; the chosen token is always in its map."""
        return {
            "tokens": [token_text(token.data, "bytes:") for token in tokens],
            "token_logprobs": [max(token.logprob, LOWEST) for token in tokens],
            "top_logprobs": [_map(token) for token in tokens],
            "text_offset": [self._advance(token.data) for token in tokens],
        }

    def _advance(self, data: bytes) -> int:
        offset = self._offset
        self._offset += len(self._decode(data))
        return offset


def _map(token: TokenInfo) -> dict[str, float]:
    pairs = (*token.top, (token.data, token.logprob))
    return {token_text(data, "bytes:"): max(value, LOWEST) for data, value in pairs}


def token_text(data: bytes, prefix: str = "") -> str:
    r"""Return a token as text; one that is a part of a character is spelt ``\xe2\x80``.

    OpenAI spells such tokens so, behind ``bytes:`` in text completions.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)
