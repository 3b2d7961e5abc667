"""An event loop on a thread of its own, so that the main thread can wait for a person."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines for a thread that blocks; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result; cancelled when the wait is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def iterate(self, items: AsyncGenerator[T]) -> Generator[T]:
        """Yield what ``items`` yields; closing this generator closes that one too."""
        arrived: queue.SimpleQueue[T | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(items):
                    async for item in items:
                        arrived.put(item)
            finally:
                arrived.put(None)

        future = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        item: T | None = None
        try:
            while (item := arrived.get()) is not None:
                yield item
            future.result()
        finally:
            if not future.done():
                future.cancel()
                while arrived.get() is not None:
                    pass
