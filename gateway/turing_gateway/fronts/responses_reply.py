"""Answers of the Responses API: events to output items, in pieces or as a whole.

There is one way from events to items, ``Items``. A stream sends what it yields; a whole answer is
the response that its last event carries.
"""

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from turing_gateway.call import (
    Begin,
    Call,
    Event,
    Failure,
    Finish,
    TextDelta,
    ThinkDelta,
    TokenInfo,
    ToolDelta,
)
from turing_gateway.fronts.base import Events
from turing_gateway.fronts.collect import warned
from turing_gateway.fronts.openai_reply import chat_logprobs
from turing_gateway.fronts.responses_events import (
    ArgumentsDone,
    ArgumentsPiece,
    BrokenOff,
    CallItem,
    Completed,
    Created,
    CutOff,
    Failed,
    Incomplete,
    InProgress,
    InputDetails,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputDetails,
    OutputItem,
    PartAdded,
    PartDone,
    ReasoningDone,
    ReasoningItem,
    ReasoningPiece,
    Reply,
    Sent,
    TextDone,
    TextPiece,
    Usage,
)
from turing_gateway.fronts.responses_types import (
    OutputText,
    PlainFormat,
    ReasoningText,
    ResponsesBody,
)
from turing_protocol.errors import TuringError

RUNNING, WHOLE, CUT = "in_progress", "completed", "incomplete"


def opening(call: Call, body: ResponsesBody) -> Reply:
    """Return the response to ``body`` before anything of its answer is known."""
    wanted = body.text.format if body.text else None
    return Reply(
        id=f"resp_{call.request_id}",
        created_at=int(time.time()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=body.model or call.model,
        parallel_tool_calls=call.tool_choice.parallel,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": call.effort or None, "summary": None},
        temperature=call.sampling.temperature,
        text={"format": wanted or PlainFormat()},
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=call.sampling.top_p,
        metadata=body.metadata or {},
    )


class Items:
    """Turns the events of a call with one choice into those of a response stream.

    Items are numbered 0, 1, 2 and never overlap; without text there is none. ``response`` is the
    answer so far, with the items that have ended.
    """

    def __init__(self, response: Reply) -> None:
        self.response = response
        self._open: _Text | _Thoughts | _Arguments | None = None
        self._begun = 0
        self._sent = 0

    def take(self, event: Event) -> list[Sent]:
        """Return what ``event`` adds; the error of a ``Failure`` is raised."""
        return self._numbered(self._take(event))

    def fail(self, error: TuringError) -> list[Sent]:
        """Return the end of a stream that broke off."""
        self.response = replace(self.response, status="failed", error=Failed(error.message))
        return self._numbered([BrokenOff(response=self.response)])

    def _take(self, event: Event) -> list[Sent]:
        match event:
            case Begin():
                return [Created(response=self.response), InProgress(response=self.response)]
            case TextDelta(text=text, tokens=tokens):
                return self._text(text, tokens) if text or tokens else []
            case ThinkDelta(text=text):
                return self._thoughts(text) if text else []
            case ToolDelta():
                return self._call(event)
            case Finish():
                return self._finish(event)
            case Failure():
                raise event.error

    def _text(self, text: str, tokens: Sequence[TokenInfo]) -> list[Sent]:
        item, sent = self._open, []
        if not isinstance(item, _Text):
            item = _Text(self._place("msg"))
            sent = self._begin(item)
        return [*sent, item.more(text, tokens)]

    def _thoughts(self, text: str) -> list[Sent]:
        item, sent = self._open, []
        if not isinstance(item, _Thoughts):
            item = _Thoughts(self._place("rs"))
            sent = self._begin(item)
        return [*sent, item.more(text)]

    def _call(self, event: ToolDelta) -> list[Sent]:
        item, sent = self._open, []
        if not isinstance(item, _Arguments) or item.call != event.index:
            if not event.name:
                raise ValueError(f"a piece of tool call {event.index} came without its beginning")
            item = _Arguments(self._place("fc"), event)
            sent = self._begin(item)
        return [*sent, *item.more(event.arguments)]

    def _place(self, prefix: str) -> "_Place":
        number = self._begun
        self._begun += 1
        return _Place(f"{prefix}_{self.response.id.removeprefix('resp_')}_{number}", number)

    def _begin(self, item: "_Text | _Thoughts | _Arguments") -> list[Sent]:
        sent = self._end(WHOLE)
        self._open = item
        return [*sent, *item.begin()]

    def _end(self, status: str) -> list[Sent]:
        if self._open is None:
            return []
        sent, item = self._open.end(status)
        done = ItemDone(output_index=self._open.place.number, item=item)
        self.response = replace(self.response, output=[*self.response.output, item])
        self._open = None
        return [*sent, done]

    def _finish(self, finish: Finish) -> list[Sent]:
        cut = finish.reason == "length"
        sent = self._end(CUT if cut else WHOLE)
        self.response = replace(
            self.response,
            status=CUT if cut else WHOLE,
            completed_at=None if cut else int(time.time()),
            incomplete_details=Incomplete() if cut else None,
            usage=_usage(finish),
            **warned(finish.warnings),
        )
        last = CutOff if cut else Completed
        return [*sent, last(response=self.response)]

    def _numbered(self, sent: list[Sent]) -> list[Sent]:
        for one in sent:
            one.sequence_number = self._sent
            self._sent += 1
        return sent


class _Place(NamedTuple):
    """Which item of the answer an event is about."""

    id: str
    number: int

    @property
    def keys(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.number}


class _Text:
    """A message that is being written."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []

    def begin(self) -> list[Sent]:
        item = MessageItem(id=self.place.id, status=RUNNING, content=[])
        added = ItemAdded(output_index=self.place.number, item=item)
        return [added, PartAdded(**self.place.keys, part=OutputText(""))]

    def more(self, text: str, tokens: Sequence[TokenInfo]) -> Sent:
        logprobs = chat_logprobs(tokens)["content"]
        self._pieces.append(text)
        self._logprobs += logprobs
        return TextPiece(**self.place.keys, delta=text, logprobs=logprobs)

    def end(self, status: str) -> tuple[list[Sent], OutputItem]:
        part = OutputText("".join(self._pieces), logprobs=self._logprobs)
        done = TextDone(**self.place.keys, text=part.text, logprobs=part.logprobs)
        item = MessageItem(id=self.place.id, status=status, content=[part])
        return [done, PartDone(**self.place.keys, part=part)], item


class _Thoughts:
    """Reasoning that is being written."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self._pieces: list[str] = []

    def begin(self) -> list[Sent]:
        item = ReasoningItem(id=self.place.id, status=RUNNING, content=[])
        added = ItemAdded(output_index=self.place.number, item=item)
        return [added, PartAdded(**self.place.keys, part=ReasoningText(""))]

    def more(self, text: str) -> Sent:
        self._pieces.append(text)
        return ReasoningPiece(**self.place.keys, delta=text)

    def end(self, status: str) -> tuple[list[Sent], OutputItem]:
        part = ReasoningText("".join(self._pieces))
        done = ReasoningDone(**self.place.keys, text=part.text)
        item = ReasoningItem(id=self.place.id, status=status, content=[part])
        return [done, PartDone(**self.place.keys, part=part)], item


class _Arguments:
    """A call that is being written; ``first`` is its first piece."""

    def __init__(self, place: _Place, first: ToolDelta) -> None:
        self.place = place
        self.call = first.index
        self._first = first
        self._pieces: list[str] = []

    def begin(self) -> list[Sent]:
        return [ItemAdded(output_index=self.place.number, item=self._item(RUNNING))]

    def more(self, arguments: str) -> list[Sent]:
        if not arguments:
            return []
        self._pieces.append(arguments)
        return [ArgumentsPiece(**self.place.keys, delta=arguments)]

    def end(self, status: str) -> tuple[list[Sent], OutputItem]:
        item = self._item(status)
        done = ArgumentsDone(**self.place.keys, name=item.name, arguments=item.arguments)
        return [done], item

    def _item(self, status: str) -> CallItem:
        return CallItem(
            id=self.place.id,
            status=status,
            call_id=self._first.id,
            name=self._first.name,
            arguments="".join(self._pieces),
        )


async def gather(first: Begin, events: Events, items: Items) -> Reply:
    """Return the whole response; a failure is raised."""
    async with aclosing(events):
        items.take(first)
        async for event in events:
            items.take(event)
    return items.response


def sse(sent: Sequence[Sent]) -> bytes:
    """Return the bytes of events: each has its name beside its data."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (_name(one), msgspec.json.encode(one)) for one in sent
    )


def _name(sent: Sent) -> bytes:
    return str(sent.__struct_config__.tag).encode()


def _usage(finish: Finish) -> Usage:
    return Usage(
        input_tokens=finish.prompt_tokens,
        input_tokens_details=InputDetails(finish.cached_tokens),
        output_tokens=finish.output_tokens,
        output_tokens_details=OutputDetails(finish.reasoning_tokens),
        total_tokens=finish.prompt_tokens + finish.output_tokens,
    )
