"""The text pool: small work at once, long work in threads, and its limits."""

import asyncio
import threading

import pytest

from turing_gateway.text.pool import INLINE_SIZE, TextPool
from turing_protocol.errors import Code, TuringError

pytestmark = pytest.mark.anyio


async def test_small_work_stays_on_the_thread_and_long_work_leaves_it() -> None:
    pool = TextPool()
    here = threading.current_thread().name
    assert await pool.run(10, lambda: threading.current_thread().name) == here
    assert (await pool.run(INLINE_SIZE, lambda: threading.current_thread().name)) != here
    pool.close()


async def test_errors_of_the_work_come_through() -> None:
    def fail() -> None:
        raise TuringError(Code.INVALID, "no", param="messages")

    pool = TextPool()
    for size in (1, INLINE_SIZE):
        with pytest.raises(TuringError, match="no"):
            await pool.run(size, fail)
    pool.close()


async def test_a_text_that_is_too_long_is_refused_before_any_work() -> None:
    pool = TextPool(max_size=5000)
    with pytest.raises(TuringError) as caught:
        await pool.run(5001, pytest.fail)
    assert caught.value.code is Code.TOO_LARGE
    pool.close()


async def test_a_full_pool_refuses_and_takes_work_again_when_it_is_done() -> None:
    pool, go = TextPool(1, max_waiting=1), threading.Event()
    first = asyncio.create_task(pool.run(INLINE_SIZE, go.wait))
    await asyncio.sleep(0)
    with pytest.raises(TuringError) as caught:
        await pool.run(INLINE_SIZE, go.wait)
    assert (caught.value.code, caught.value.retry_ms) == (Code.OVERLOADED, 2000)
    assert await pool.run(1, lambda: "small work still runs") == "small work still runs"
    go.set()
    assert await first
    assert await pool.run(INLINE_SIZE, lambda: 7) == 7
    pool.close()


async def test_a_caller_waits_only_so_long() -> None:
    pool, go = TextPool(1, seconds=0.05), threading.Event()
    with pytest.raises(TuringError) as caught:
        await pool.run(INLINE_SIZE, go.wait)
    assert caught.value.code is Code.DEADLINE
    go.set()
    pool.close()


async def test_work_of_a_caller_that_left_is_not_begun() -> None:
    pool, go, begun = TextPool(1), threading.Event(), threading.Event()
    first = asyncio.create_task(pool.run(INLINE_SIZE, go.wait))
    second = asyncio.create_task(pool.run(INLINE_SIZE, begun.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    assert await pool.run(INLINE_SIZE, begun.is_set) is False
    pool.close()
