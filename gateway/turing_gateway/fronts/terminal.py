"""A conversation, or one answer, on a terminal."""

import contextlib
from collections.abc import Callable, Generator

from rich.console import Console
from rich.text import Text

from turing_gateway.call import Event, Failure, Finish, Message, TextDelta, ThinkDelta
from turing_protocol.errors import TuringError

PROMPT = "> "
HELP = "Ctrl-C stops an answer, /reset forgets the conversation, /quit leaves."

_UNSAFE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters, which a model may write but a terminal would obey."""

Ask = Callable[[tuple[Message, ...]], Generator[Event]]
"""Starts one answer; closing the generator stops it."""


class Terminal:
    """Asks with ``ask``, shows answers as they come, and keeps the history of the conversation.

    ``read`` returns one line of the user's; it raises ``EOFError`` at the end of the input and
    ``KeyboardInterrupt`` on Ctrl-C.
    """

    def __init__(self, ask: Ask, console: Console, read: Callable[[str], str]) -> None:
        self._ask = ask
        self._console = console
        self._read = read
        self._history: list[Message] = []

    def run(self) -> None:
        """Talk until ``/quit`` or the end of the input."""
        self._note(HELP)
        while True:
            try:
                line = self._read(PROMPT).strip()
            except KeyboardInterrupt:
                self._console.print()
                self._note(HELP)
                continue
            except EOFError:
                return
            if line == "/quit":
                return
            if line == "/reset":
                self._history.clear()
                self._note("The conversation starts anew.")
            elif line:
                self._turn(line)

    def _turn(self, line: str) -> None:
        self._history.append(Message(role="user", content=line))
        try:
            answer = show(self._ask(tuple(self._history)), self._console)
        except TuringError as error:
            self._history.pop()
            self._console.print(f"Error: {error.message}", style="red", markup=False)
            return
        if answer:
            self._history.append(Message(role="assistant", content=answer))
        else:  # stopped before its first word
            self._history.pop()

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)


def show(events: Generator[Event], console: Console) -> str:
    """Print an answer as it comes, its reasoning dim, and return its text.

    Ctrl-C stops it; what came until then is kept. A failure is raised as its ``TuringError``.
    """
    text: list[str] = []
    thinking = False
    with contextlib.closing(events):
        try:
            for event in events:
                if isinstance(event, ThinkDelta):
                    thinking = True
                    _put(console, event.text, "dim")
                elif isinstance(event, TextDelta):
                    _put(console, "\n\n" + event.text if thinking else event.text, "")
                    thinking = False
                    text.append(event.text)
                elif isinstance(event, Failure):
                    raise event.error
                elif isinstance(event, Finish) and event.reason == "length":
                    _put(console, " …", "dim")
        except KeyboardInterrupt:
            _put(console, " (stopped)", "dim")
        finally:
            console.print()
    return "".join(text)


def _put(console: Console, text: str, style: str) -> None:
    console.print(Text(text.translate(_UNSAFE), style), end="", soft_wrap=True)
