"""What is left of a chat that is too long, whatever its turns; tools that take too much room."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.generator import FakeGenerator
from turing_gateway.call import Call, Message, Tool
from turing_gateway.fronts.ollama_call import Notes
from turing_gateway.fronts.ollama_fit import drop_old_turns, fit_tools
from turing_protocol.errors import Code, TuringError

TURNS = st.lists(
    st.builds(
        lambda role, size: Message(role=role, content="x" * size),
        st.sampled_from(["system", "user", "assistant", "tool"]),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=12,
)


def size(messages: tuple[Message, ...]) -> int:
    return sum(len(f"{m.role}:{m.content}\n") for m in messages)


@given(TURNS, st.integers(1, 300))
def test_the_most_that_fits_is_kept(turns: list[Message], context: int) -> None:
    messages, notes = tuple(turns), Notes()
    call = Call(model="fake", messages=messages)
    shorter = asyncio.run(drop_old_turns(FakeGenerator(), call, context, notes))
    candidates = [
        (*(m for m in messages[:i] if m.role == "system"), *messages[i:])
        for i, m in enumerate(messages)
        if i > 0 and m.role == "user"
    ]
    fitting = [kept for kept in candidates if size(kept) < context]
    assert (shorter.messages if shorter else None) == (fitting[0] if fitting else None)
    assert len(notes.lines) == bool(fitting)


class Shown(FakeGenerator):
    """Renders each tool as ``cost`` ids."""

    def __init__(self, cost: int) -> None:
        super().__init__()
        self._cost = cost

    async def render(self, call: Call) -> list[int]:
        return [*await super().render(call), *[0] * (len(call.tools) * self._cost)]


def fitted(generator: FakeGenerator, call: Call) -> tuple[Call, list[str]]:
    notes = Notes()
    return asyncio.run(fit_tools(generator, call, 100, notes)), notes.lines


CALL = Call(model="fake", messages=(Message(role="user", content="hi"),), tools=(Tool(name="f"),))


def test_tools_that_take_a_quarter_are_shown() -> None:
    assert fitted(Shown(25), CALL) == (CALL, [])


def test_larger_tools_are_left_out() -> None:
    call, notes = fitted(Shown(26), CALL)
    assert call.tools == ()
    assert notes == ["tools: left out, they take 26 of 100 tokens of context"]


def test_without_tools_nothing_is_rendered_or_noted() -> None:
    bare = Call(model="fake", messages=CALL.messages)
    assert fitted(Shown(1000), bare) == (bare, [])


def test_what_is_wrong_with_the_messages_is_not_blamed_on_tools() -> None:
    class Broken(FakeGenerator):
        async def render(self, call: Call) -> list[int]:
            raise TuringError(Code.INVALID, "roles must alternate", param="messages")

    with pytest.raises(TuringError, match="alternate"):
        fitted(Broken(), CALL)
