"""CPU work on text off the event loop, within limits of size, number and time."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from turing_protocol.errors import Code, TuringError

T = TypeVar("T")

INLINE_SIZE = 2048
"""Work on fewer characters is done at once: changing the thread would take longer."""


class TextPool:
    """A few threads that render and tokenise.

    ``max_size`` bounds the characters of one piece of work (``Code.TOO_LARGE``), ``max_waiting``
    the pieces that are not done yet (``Code.OVERLOADED``), ``seconds`` how long a caller waits
    (``Code.DEADLINE``). A thread cannot be stopped: what it runs must be bounded by itself.
    """

    def __init__(
        self,
        threads: int = 2,
        *,
        max_size: int = 4 << 20,
        max_waiting: int = 256,
        seconds: float = 30.0,
    ) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="text")
        self._max_size = max_size
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._waiting = 0
        self._lock = threading.Lock()

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which goes through ``size`` characters."""
        if size < INLINE_SIZE:
            return work()
        if size > self._max_size:
            raise TuringError(
                Code.TOO_LARGE, f"the text is longer than {self._max_size} characters"
            )
        if self._waiting >= self._max_waiting:
            raise TuringError(Code.OVERLOADED, "too many long texts are being read", retry_ms=2000)
        return await self._run_in_thread(work)

    def close(self) -> None:
        """Drop what has not begun; what runs is left to end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        with self._lock:
            self._waiting += 1
        future = self._executor.submit(work)
        future.add_done_callback(self._one_done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            raise TuringError(
                Code.DEADLINE, f"reading the text took longer than {self._seconds:g} s"
            ) from None

    def _one_done(self, _: object) -> None:
        with self._lock:
            self._waiting -= 1
