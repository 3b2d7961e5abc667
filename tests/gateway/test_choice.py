"""Several choices as one stream of events, and reasoning that is made to end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from fakes.engine import FakeEngine
from fakes.fleets import MakeEngine, fleet_of
from fakes.wire import ASSETS
from turing_gateway.call import Call, Event, Finish, Message, TextDelta, ThinkDelta
from turing_gateway.choice import merge
from turing_gateway.generate import Generator
from turing_gateway.text.pool import TextPool
from turing_protocol.codec import unpack
from turing_protocol.sampling import Sampling

pytestmark = pytest.mark.anyio


class Source:
    """Speaks ``words`` as one choice, ``hold``s the end back, and knows whether it was closed."""

    def __init__(
        self, choice: int, words: str, error: Exception | None = None, *, hold: bool = False
    ) -> None:
        self.closed = False
        self._hold = hold
        self._choice = choice
        self._words = words
        self._error = error

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            for word in self._words:
                yield TextDelta(self._choice, word)
            if self._hold:
                await asyncio.Event().wait()
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_every_event_comes_in_the_order_of_its_choice(count: int) -> None:
    sources = [Source(choice, "abc") for choice in range(count)]
    texts = [""] * count
    async for event in merge([source.events() for source in sources]):
        assert isinstance(event, TextDelta)
        texts[event.choice] += event.text
    assert texts == ["abc"] * count
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_every_source(count: int) -> None:
    sources = [Source(choice, "abc", hold=True) for choice in range(count)]
    async with aclosing(merge([source.events() for source in sources])) as events:
        await anext(events)
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_defect_in_one_choice_is_raised(count: int) -> None:
    sources = [Source(choice, "b", hold=True) for choice in range(1, count)]
    sources.append(Source(0, "a", RuntimeError("defect")))
    with pytest.raises(RuntimeError, match="defect"):
        async for _ in merge([source.events() for source in sources]):
            pass
    assert all(source.closed for source in sources)


# Reasoning with a budget

THINKING = {**ASSETS, "chat_template": b"{{ messages[0].content }}<think>"}
END = list(b"</think>")


async def think(engine: FakeEngine, max_tokens: int, **fields: Any) -> list[Event]:
    call = Call(
        model="fake",
        messages=(Message(role="user", content="Why?"),),
        sampling=Sampling(temperature=0.0),
        max_tokens=max_tokens,
        **fields,
    )
    async with fleet_of(engine) as fleet, asyncio.timeout(30):
        pool = TextPool()
        async with aclosing(Generator(fleet, pool).run(call)) as events:
            shown = [event async for event in events]
        pool.close()
    return shown


def texts(events: list[Event]) -> tuple[str, str]:
    thought = [event.text for event in events if isinstance(event, ThinkDelta)]
    text = [event.text for event in events if isinstance(event, TextDelta)]
    return "".join(thought), "".join(text)


async def test_a_spent_budget_ends_the_reasoning_and_the_answer_follows(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(assets=THINKING).start()
    events = await think(engine, 30, thinking_tokens=5)
    first, second = engine.submitted
    assert first.prior == b""
    assert unpack(second.prior)[5:] == END
    assert second.sampling == first.sampling
    thought, text = texts(events)
    assert (thought, len(text)) == (bytes(unpack(second.prior)[:5]).decode(), 30 - 5 - len(END))
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.output_tokens) == ("length", 30)
    assert finish.reasoning_tokens == 5 + len(END)


async def test_a_budget_never_makes_the_answer_longer(make_engine: MakeEngine) -> None:
    engine = make_engine(assets=THINKING).start()
    events = await think(engine, 5 + len(END), thinking_tokens=5)
    thought, text = texts(events)
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (len(thought), text, finish.reason, finish.output_tokens) == (5, "", "length", 5)
    assert len(engine.submitted) == 1


async def test_without_a_budget_reasoning_goes_on(make_engine: MakeEngine) -> None:
    engine = make_engine(assets=THINKING).start()
    assert len(texts(await think(engine, 30, effort="max"))[0]) == 30
    assert len(engine.submitted) == 1


async def test_without_effort_there_is_no_reasoning(make_engine: MakeEngine) -> None:
    engine = make_engine(assets=THINKING).start()
    thought, text = texts(await think(engine, 10, effort="none"))
    assert (thought, len(text)) == ("", 10)
    assert unpack(engine.submitted[0].prompt)[-len(END) :] == END
