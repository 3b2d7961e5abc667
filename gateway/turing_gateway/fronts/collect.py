"""Events of one or several calls, gathered for an answer or merged for a stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Receive

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
from turing_gateway.fronts.base import Events
from turing_gateway.http import internal_error, until_disconnect
from turing_protocol.errors import TuringError


class Answer:
    """One choice, as far as its events have told."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.ids: list[int] = []
        self.tokens: list[TokenInfo] = []
        self.reason = ""
        self.warnings: tuple[str, ...] = ()
        self._text: list[str] = []
        self._thinking: list[str] = []

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """The reasoning before it."""
        return "".join(self._thinking)

    def add(self, event: Event) -> None:
        """Take one event of this choice; a ``Failure`` is raised."""
        match event:
            case TextDelta():
                self._text.append(event.text)
                self.ids += event.ids
                self.tokens += event.tokens
            case ThinkDelta():
                self._thinking.append(event.text)
                self.ids += event.ids
            case ToolDelta():
                self._call(event)
                self.ids += event.ids
            case Finish():
                self.reason = event.reason
                self.warnings = event.warnings
            case Failure():
                raise event.error
            case Begin():
                pass

    def _call(self, event: ToolDelta) -> None:
        if event.index == len(self.calls):
            self.calls.append(ToolCall(event.id, event.name, ""))
        before = self.calls[event.index]
        self.calls[event.index] = msgspec.structs.replace(
            before, arguments=before.arguments + event.arguments
        )


def warned(warnings: Iterable[str]) -> dict[str, Any]:
    """Return the field that lists why an answer may not be what was asked for, if anything does."""
    lines = list(dict.fromkeys(warnings))
    return {"turing": {"warnings": lines}} if lines else {}


class Usage:
    """Token counts of an answer: each prompt once, the output of every choice."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self.prompt = 0
        self.cached = 0
        self.output = 0
        self.reasoning = 0
        self.seen = 0
        """Output tokens that were passed on so far; equal to ``output`` at the end or less."""

    def count(self, event: Event) -> None:
        """Take one event of any choice."""
        if isinstance(event, TextDelta | ThinkDelta | ToolDelta):
            self.seen += len(event.ids)
        elif isinstance(event, Begin):
            if event.choice % self._choices == 0:
                self.prompt += event.prompt_tokens
                self.cached += event.cached_tokens
        elif isinstance(event, Finish):
            self.output += event.output_tokens
            self.reasoning += event.reasoning_tokens

    def openai(self, *, running: bool = False) -> dict[str, Any]:
        """Return OpenAI's ``usage`` object; ``running`` counts what was passed on so far."""
        output = self.seen if running else self.output
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": output,
            "total_tokens": self.prompt + output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


async def first_event(receive: Receive, events: Events) -> Begin:
    """Return the first event, so that what fails before it can still become an HTTP status.

    Raises ``TuringError`` when the call failed and ``ClientDisconnect`` when nobody waits for it;
    ``events`` is closed then.
    """
    try:
        return _begin(await until_disconnect(receive, anext(events)))
    except BaseException:
        await events.aclose()
        raise


def _begin(event: Event) -> Begin:
    if isinstance(event, Failure):
        raise event.error
    if not isinstance(event, Begin):
        raise TypeError(f"a call began with {type(event).__name__}")
    return event


async def collect(first: Begin, events: Events, choices: int) -> tuple[list[Answer], Usage]:
    """Return the answers of all choices in order, and the usage.

    ``choices`` is their number per call. A choice that fails fails them all.
    """
    answers: dict[int, Answer] = {}
    usage = Usage(choices)
    usage.count(first)
    async with aclosing(events):
        async for event in events:
            answers.setdefault(event.choice, Answer()).add(event)
            usage.count(event)
    return [answers[choice] for choice in sorted(answers)], usage


async def written(
    first: Begin,
    events: Events,
    write: Callable[[Event], bytes],
    *,
    end: Callable[[], bytes],
    fail: Callable[[TuringError], bytes],
    request_id: str,
) -> AsyncGenerator[bytes, None]:
    """Yield a stream's bytes: ``write`` of every event, then ``end``, or ``fail`` of what failed.

    ``write`` may return nothing for an event, and raises the error of a ``Failure``.
    """
    try:
        async with aclosing(events):
            if opening := write(first):
                yield opening
            async for event in events:
                if chunk := write(event):
                    yield chunk
        tail = end()
    except TuringError as error:
        tail = fail(error)
    except Exception:
        tail = fail(internal_error(request_id))
    if tail:
        yield tail


async def fan_out(runs: Sequence[Events], choices: int) -> Events:
    """Yield the events of several calls as if they were one.

    Choice ``c`` of call ``i`` becomes ``i * choices + c``. The first call that raises ends all.
    """
    queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(len(runs))
    tasks = [
        asyncio.create_task(_forward(run, index * choices, queue)) for index, run in enumerate(runs)
    ]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    run: Events, offset: int, queue: "asyncio.Queue[Event | Exception | None]"
) -> None:
    try:
        async with aclosing(run):
            async for event in run:
                await queue.put(msgspec.structs.replace(event, choice=event.choice + offset))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
