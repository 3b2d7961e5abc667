"""Counting requests in flight."""

import asyncio

import pytest

from turing_gateway.drain import Drain

pytestmark = pytest.mark.anyio


async def test_idle_waits_for_the_last_request() -> None:
    drain = Drain()
    drain.enter()
    drain.enter()
    waiting = asyncio.ensure_future(drain.idle())
    drain.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    drain.leave()
    await waiting
    assert drain.active == 0


async def test_idle_returns_at_once_without_requests() -> None:
    await Drain().idle()
