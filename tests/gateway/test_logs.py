"""Log lines."""

import json
import logging
from collections.abc import Iterator

import pytest

from turing_gateway import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_have_level_name_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", json=True)
    log = logging.getLogger("turing_gateway.x")
    log.debug("unseen")
    log.warning("request %s", "r1")
    (line,) = capfd.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["logger"]) == (
        "request r1",
        "warning",
        "turing_gateway.x",
    )
    assert entry["timestamp"].endswith("Z")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_exception_is_shown_without_the_values_around_it(
    as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", json=as_json)
    prompt = "private words"
    try:
        raise ValueError(len(prompt))  # noqa: TRY301
    except ValueError:
        logging.getLogger("x").exception("failed")
    text = capfd.readouterr().err
    assert "ValueError: 13" in text
    assert prompt not in text
