"""The rule of admission: admit, 429, 503 or never."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from turing_protocol.admission import (
    ADMIT,
    RETRY_MS,
    Room,
    decide,
    mark,
    pages_needed,
    retry_ms,
)
from turing_protocol.errors import Code
from turing_protocol.lanes import Lane

LATER = [Lane.BATCH, Lane.BACKGROUND]


def room(load: int, *, total: int = 10_000, waiting: int = 0) -> Room:
    return Room(pages_total=total, load=load, waiting=waiting, max_waiting=8)


@pytest.mark.parametrize(
    ("tokens", "pages"), [(1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)]
)
def test_pages_are_filled_or_begun(tokens: int, pages: int) -> None:
    assert pages_needed(tokens) == pages


@pytest.mark.parametrize("lane", LATER)
@pytest.mark.parametrize(
    ("after", "code"),
    [
        (8_999, None),
        (9_000, None),
        (9_001, Code.OVERLOADED),
        (9_500, Code.OVERLOADED),
        (9_501, Code.SHED),
        (20_000, Code.SHED),
    ],
)
def test_the_watermarks_are_exact(lane: Lane, after: int, code: Code | None) -> None:
    verdict = decide(room(after - 10), lane, pages=10)
    assert verdict.code == code
    assert verdict.retry_ms == (0 if code is None else RETRY_MS)


def test_interactive_work_waits_until_the_queue_is_full() -> None:
    assert decide(room(50_000, waiting=7), Lane.INTERACTIVE, 10) == ADMIT
    verdict = decide(room(50_000, waiting=8), Lane.INTERACTIVE, 10)
    assert (verdict.code, verdict.retry_ms) == (Code.OVERLOADED, RETRY_MS)


@pytest.mark.parametrize("lane", Lane)
def test_what_can_never_fit_is_told_so(lane: Lane) -> None:
    verdict = decide(room(0, total=100), lane, pages=101)
    assert (verdict.code, verdict.retry_ms) == (Code.NEVER_FITS, 0)


@pytest.mark.parametrize("lane", Lane)
def test_an_idle_engine_takes_what_fits(lane: Lane) -> None:
    assert decide(room(0, total=100), lane, pages=100) == ADMIT


def test_all_choices_of_a_call_count() -> None:
    assert decide(room(8_900), Lane.BATCH, 10, count=10) == ADMIT
    assert decide(room(8_900), Lane.BATCH, 10, count=11).code == Code.OVERLOADED


@given(
    st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 1000), st.sampled_from(list(Lane))
)
def test_more_load_never_helps(load: int, more: int, pages: int, lane: Lane) -> None:
    before, after = (decide(room(at, total=1000), lane, pages) for at in (load, load + more))
    rank = {None: 0, Code.OVERLOADED: 1, Code.SHED: 2}
    assert rank[before.code] <= rank[after.code]


@given(st.integers(1, 3000), st.integers(1, 1000))
def test_the_picker_sees_room_where_admission_does(load: int, pages: int) -> None:
    fits = (load + pages) / 1000 <= mark(Lane.BATCH)
    assert (decide(room(load, total=1000), Lane.BATCH, pages) == ADMIT) == fits


@pytest.mark.parametrize(
    ("backlog", "rate", "wait"),
    [
        (10_000, 0.0, 2000),
        (0, 100.0, 1000),
        (99, 100.0, 1000),
        (1000, 300.0, 3334),
        (10_000, 100.0, 30_000),
        (10**9, 1e-300, 30_000),
    ],
)
def test_the_wait_is_backlog_over_throughput(backlog: int, rate: float, wait: int) -> None:
    assert retry_ms(backlog, rate) == wait


def test_who_waits_for_pages_waits_for_those_above_the_mark() -> None:
    busy = Room(10_000, 9_000, 0, 8, tokens_per_s=320.0)
    assert decide(busy, Lane.BATCH, 25).retry_ms == 25 * 64 * 1000 // 320


def test_who_waits_for_a_place_waits_for_the_tokens_before_it() -> None:
    busy = Room(10_000, 9_000, 8, 8, waiting_tokens=6400, tokens_per_s=640.0)
    assert decide(busy, Lane.INTERACTIVE, 25).retry_ms == 10_000
