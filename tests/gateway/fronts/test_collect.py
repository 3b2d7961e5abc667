"""Gathering and merging events."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from fakes.asgi import Connection
from fakes.generator import begin, finish
from turing_gateway.call import Event, Failure, TextDelta, ThinkDelta, ToolCall, ToolDelta
from turing_gateway.fronts.base import Events
from turing_gateway.fronts.collect import Answer, Usage, collect, fan_out, first_event
from turing_protocol.errors import Code, TuringError


class Run:
    """A run of given events that can hang, and notes that it was closed."""

    def __init__(self, events: Sequence[Event], *, hang: bool = False) -> None:
        self.events = events
        self.hang = hang
        self.closed = False

    async def __call__(self) -> Events:
        try:
            for event in self.events:
                await asyncio.sleep(0)
                yield event
            if self.hang:
                await asyncio.Event().wait()
        finally:
            self.closed = True


def test_an_answer_joins_its_pieces() -> None:
    answer = Answer()
    for event in (
        begin(),
        ThinkDelta(0, "so", (1,)),
        TextDelta(0, "a", (2,)),
        TextDelta(0, "b", (3, 4)),
        ToolDelta(0, 0, "c1", "f", '{"x"'),
        ToolDelta(0, 0, arguments=":1}"),
        finish(reason="tool_calls"),
    ):
        answer.add(event)
    assert (answer.text, answer.thinking, answer.ids) == ("ab", "so", [1, 2, 3, 4])
    assert answer.calls == [ToolCall("c1", "f", '{"x":1}')]
    assert answer.reason == "tool_calls"


def test_usage_counts_prompts_once_and_output_of_every_choice() -> None:
    usage = Usage(2)
    for choice in range(4):
        usage.count(begin(choice))
        usage.count(TextDelta(choice, "x", (1, 2)))
        usage.count(finish(choice, output=3, reasoning_tokens=1))
    assert usage.openai() == {
        "prompt_tokens": 10,
        "completion_tokens": 12,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    assert usage.openai(running=True)["completion_tokens"] == 8


def test_the_first_event_of_a_failed_call_is_raised_and_the_run_closed() -> None:
    run = Run([Failure(0, TuringError(Code.SHED, "full"))], hang=True)
    with pytest.raises(TuringError, match="full"):
        asyncio.run(_first(run))
    assert run.closed


def test_a_run_that_does_not_begin_is_a_fault_of_ours() -> None:
    run = Run([TextDelta(0, "x")], hang=True)
    with pytest.raises(TypeError):
        asyncio.run(_first(run))
    assert run.closed


def test_a_client_that_leaves_before_the_first_event_closes_the_run() -> None:
    run = Run([], hang=True)
    with pytest.raises(ClientDisconnect):
        asyncio.run(_first(run, leave=True))
    assert run.closed


async def _first(run: Run, *, leave: bool = False) -> Event:
    connection = Connection("/x")
    if leave:
        asyncio.get_running_loop().call_soon(connection.leave)
    return await first_event(connection.receive, run())


def test_a_choice_that_fails_in_the_middle_fails_the_answer() -> None:
    run = Run([TextDelta(0, "x"), Failure(0, TuringError(Code.ENGINE_LOST, "lost"))], hang=True)
    with pytest.raises(TuringError, match="lost"):
        asyncio.run(collect(begin(), run(), 1))
    assert run.closed


@given(st.lists(st.lists(st.text(max_size=3), max_size=4), min_size=1, max_size=4))
def test_merged_runs_keep_every_event_in_the_order_of_its_choice(texts: list[list[str]]) -> None:
    runs = [Run([TextDelta(0, text) for text in run]) for run in texts]

    async def main() -> dict[int, list[str]]:
        seen: dict[int, list[str]] = defaultdict(list)
        async for event in fan_out([run() for run in runs], 3):
            assert isinstance(event, TextDelta)
            seen[event.choice].append(event.text)
        return seen

    assert asyncio.run(main()) == {i * 3: run for i, run in enumerate(texts) if run}
    assert all(run.closed for run in runs)


def test_closing_merged_runs_closes_each() -> None:
    runs = [Run([TextDelta(0, "x")], hang=True) for _ in range(3)]

    async def main() -> None:
        merged = fan_out([run() for run in runs], 1)
        await anext(merged)
        await merged.aclose()

    asyncio.run(main())
    assert all(run.closed for run in runs)


def test_a_run_that_raises_ends_the_others() -> None:
    class Broken(Run):
        async def __call__(self) -> Events:
            raise TuringError(Code.STEP_FAILED, "step")
            yield begin()

    good = Run([TextDelta(0, "x")], hang=True)

    async def main() -> list[Event]:
        return [event async for event in fan_out([good(), Broken([])()], 1)]

    with pytest.raises(TuringError, match="step"):
        asyncio.run(main())
    assert good.closed
