"""Whether this gateway still takes work, and when the work it has is done."""

import asyncio


class Drain:
    """Counts requests in flight and lets a shutdown wait for the last of them.

    Belongs to one event loop. ``started`` is true from the first stop signal on: readiness turns
    red and new work is refused, while the listener and running streams go on.
    """

    def __init__(self) -> None:
        self.started = False
        self.active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count a request that begins."""
        self.active += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request that ended, however it ended."""
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def idle(self) -> None:
        """Return when no request is in flight."""
        await self._idle.wait()
