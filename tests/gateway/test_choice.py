"""Several choices as one stream of events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from turing_gateway.call import Event, TextDelta
from turing_gateway.choice import merge

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
