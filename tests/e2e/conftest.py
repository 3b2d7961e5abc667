"""Servers that several end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.processes import Served, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, and give starts of real servers time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("e2e")
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the scripted model, one token in two milliseconds."""
    with serving(tmp_path_factory.mktemp("scripted"), "--model", "scripted:delay_ms=2") as served:
        yield served


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the default model in full precision."""
    with serving(
        tmp_path_factory.mktemp("smollm"), "--runner", "torch", "--threads", "1"
    ) as served:
        yield served


@pytest.fixture(scope="session")
def default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without any settings: the embedded model on the runner that is chosen for it."""
    with serving(tmp_path_factory.mktemp("default")) as served:
        yield served
