"""Fixtures of the gateway's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.engine import FakeEngine
from fakes.fleets import MakeEngine


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio alone."""
    return "asyncio"


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    """Make engines on sockets of their own; they are ended after the test."""
    made: list[FakeEngine] = []

    def make(name: str = "e0", **options: object) -> FakeEngine:
        engine = FakeEngine(f"ipc://{tmp_path}/{name}", name=name, **options)  # type: ignore[arg-type]
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.kill()
