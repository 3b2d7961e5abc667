"""A loop on its own thread, seen from the thread that waits."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from turing_gateway.cli.background import Background


async def numbers(closed: list[str], most: int = 10**9) -> AsyncGenerator[int]:
    try:
        for number in range(most):
            yield number
            await asyncio.sleep(0)
    finally:
        await asyncio.sleep(0.01)
        closed.append("closed")


def test_a_result_or_an_error_comes_back() -> None:
    async def half(number: int) -> float:
        return 1 / number

    with Background() as background:
        assert background.call(half(2)) == 0.5
        with pytest.raises(ZeroDivisionError):
            background.call(half(0))


def test_items_come_in_order_and_the_source_is_closed() -> None:
    closed: list[str] = []
    with Background() as background:
        assert list(background.iterate(numbers(closed, 50))) == list(range(50))
    assert closed == ["closed"]


def test_closing_early_waits_until_the_source_has_cleaned_up() -> None:
    closed: list[str] = []
    with Background() as background:
        items = background.iterate(numbers(closed))
        assert next(items) == 0
        items.close()
        assert closed == ["closed"]


def test_an_interrupt_between_items_cleans_up_too() -> None:
    closed: list[str] = []
    with Background() as background:
        items = background.iterate(numbers(closed))
        next(items)
        with pytest.raises(KeyboardInterrupt):
            items.throw(KeyboardInterrupt)
        assert closed == ["closed"]


def test_an_error_of_the_source_comes_after_its_items() -> None:
    async def broken() -> AsyncGenerator[int]:
        yield 1
        raise ValueError("broken")

    with Background() as background:
        items = background.iterate(broken())
        assert next(items) == 1
        with pytest.raises(ValueError, match="broken"):
            next(items)
