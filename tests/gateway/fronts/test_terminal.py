"""The terminal conversation, with scripted answers."""

import io
from collections.abc import Callable, Generator, Iterator

import pytest
from rich.console import Console

from turing_gateway.call import Event, Failure, Finish, Message, TextDelta, ThinkDelta
from turing_gateway.fronts.terminal import Ask, Terminal, show
from turing_protocol.errors import Code, TuringError


def finish(reason: str = "stop") -> Finish:
    return Finish(choice=0, reason=reason, prompt_tokens=1, cached_tokens=0, output_tokens=1)


def reader(*lines: str | type[BaseException]) -> Callable[[str], str]:
    remaining: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read(prompt: str) -> str:
        line = next(remaining)
        if isinstance(line, str):
            return line
        raise line

    return read


def answering(*answers: list[Event]) -> tuple[list[tuple[Message, ...]], Ask]:
    asked: list[tuple[Message, ...]] = []
    remaining = iter(answers)

    def ask(messages: tuple[Message, ...]) -> Generator[Event]:
        asked.append(messages)
        yield from next(remaining)

    return asked, ask


def console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=False, width=40), file


def contents(messages: tuple[Message, ...]) -> list[tuple[str, object]]:
    return [(message.role, message.content) for message in messages]


def test_the_history_is_sent_with_every_question() -> None:
    asked, ask = answering(
        [TextDelta(0, "Hello"), TextDelta(0, "!"), finish()], [TextDelta(0, "Two"), finish()]
    )
    out, _ = console()
    Terminal(ask, out, reader("Hi", "  1+1?  ", "/quit", "not asked")).run()
    assert contents(asked[1]) == [("user", "Hi"), ("assistant", "Hello!"), ("user", "1+1?")]
    assert len(asked) == 2


def test_reset_forgets_the_conversation() -> None:
    asked, ask = answering([TextDelta(0, "a"), finish()], [TextDelta(0, "b"), finish()])
    out, _ = console()
    Terminal(ask, out, reader("one", "/reset", "two")).run()
    assert contents(asked[1]) == [("user", "two")]


def test_ctrl_c_at_the_prompt_and_empty_lines_ask_nothing() -> None:
    asked, ask = answering()
    out, file = console()
    Terminal(ask, out, reader(KeyboardInterrupt, "", "   ")).run()
    assert asked == []
    assert file.getvalue().count("/quit leaves") == 2


def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    closed: list[bool] = []
    asked: list[tuple[Message, ...]] = []

    def ask(messages: tuple[Message, ...]) -> Generator[Event]:
        asked.append(messages)
        try:
            yield TextDelta(0, "Once upon")
            if len(asked) == 1:
                raise KeyboardInterrupt
        finally:
            closed.append(True)

    out, file = console()
    Terminal(ask, out, reader("a story", "go on")).run()
    assert contents(asked[1])[1] == ("assistant", "Once upon")
    assert "(stopped)" in file.getvalue()
    assert closed == [True, True]


def test_an_answer_stopped_before_its_first_word_is_forgotten() -> None:
    asked: list[tuple[Message, ...]] = []

    def ask(messages: tuple[Message, ...]) -> Generator[Event]:
        asked.append(messages)
        if len(asked) == 1:
            raise KeyboardInterrupt
        yield TextDelta(0, "ok")

    out, _ = console()
    Terminal(ask, out, reader("first", "second")).run()
    assert contents(asked[1]) == [("user", "second")]


def test_a_failure_is_shown_and_its_question_forgotten() -> None:
    asked, ask = answering(
        [Failure(0, TuringError(Code.CONTEXT_TOO_LONG, "too long by 3 tokens"))],
        [TextDelta(0, "fine"), finish()],
    )
    out, file = console()
    Terminal(ask, out, reader("long", "short")).run()
    assert "Error: too long by 3 tokens" in file.getvalue()
    assert contents(asked[1]) == [("user", "short")]


def test_reasoning_is_shown_but_is_no_part_of_the_answer() -> None:
    _, ask = answering([ThinkDelta(0, "hmm"), TextDelta(0, "4"), TextDelta(0, "2"), finish()])
    out, file = console()
    assert show(ask(()), out) == "42"
    assert file.getvalue() == "hmm\n\n42\n"


def test_reasoning_is_dim_on_a_terminal() -> None:
    _, ask = answering([ThinkDelta(0, "hmm"), TextDelta(0, "42"), finish()])
    file = io.StringIO()
    show(ask(()), Console(file=file, force_terminal=True, color_system="standard"))
    assert "\x1b[2mhmm\x1b[0m" in file.getvalue()
    assert "\x1b[2m42" not in file.getvalue()


def test_an_answer_cut_by_its_limit_is_marked() -> None:
    _, ask = answering([TextDelta(0, "and then"), finish("length")])
    out, file = console()
    assert show(ask(()), out) == "and then"
    assert file.getvalue() == "and then …\n"


@pytest.mark.parametrize("text", ["[bold]x[/bold]", ":smile:", "a" * 100, "[/]"])
def test_the_model_s_text_is_printed_as_it_is(text: str) -> None:
    _, ask = answering([TextDelta(0, text), finish()])
    out, file = console()
    show(ask(()), out)
    assert file.getvalue() == text + "\n"


def test_the_model_cannot_control_the_terminal() -> None:
    _, ask = answering([TextDelta(0, "a\x1b]0;owned\x07b\x9bcd\r\ne"), finish()])
    out, file = console()
    show(ask(()), out)
    assert file.getvalue() == "a]0;ownedbcd\ne\n"
