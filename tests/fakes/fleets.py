"""Fleets on fake engines."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fakes.engine import FakeEngine
from turing_gateway.fleet.fleet import Fleet

SILENCE = 3.0
"""Longer than in production: the machines that run tests pause for a second now and then."""

MakeEngine = Callable[..., FakeEngine]


@asynccontextmanager
async def fleet_of(
    *engines: FakeEngine, silence: float = SILENCE, wait: bool = True
) -> AsyncIterator[Fleet]:
    """Run a fleet over ``engines``; with ``wait`` all of them are ready at the start."""
    fleet = Fleet([engine.endpoint for engine in engines], silence=silence)
    await fleet.start()
    try:
        if wait:
            await until(fleet, lambda: all(view.ready for view in fleet.views))
        yield fleet
    finally:
        await fleet.close()


async def until(fleet: Fleet, condition: Callable[[], bool]) -> None:
    """Wait for something that comes with, or soon after, a change of the fleet."""
    async with asyncio.timeout(20):
        while not condition():
            await fleet.changed(0.05)
