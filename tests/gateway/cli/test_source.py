"""A server's chunks read back into events."""

from collections.abc import Generator
from typing import Any

from turing_gateway.call import Call, Event, Failure, Finish, Message, TextDelta, ThinkDelta
from turing_gateway.cli.client import Server, ServerError
from turing_gateway.cli.source import Remote
from turing_protocol.errors import Code
from turing_protocol.sampling import Sampling


class Canned(Server):
    """A server that answers with given chunks."""

    def __init__(self, *chunks: dict[str, Any], breaks: bool = False) -> None:
        super().__init__("http://canned")
        self.chunks = chunks
        self.breaks = breaks
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def models(self) -> list[str]:
        """Serve two models."""
        return ["first", "second"]

    def events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the chunks."""
        self.asked.append((path, body))
        yield from self.chunks
        if self.breaks:
            raise ServerError("http://canned broke off: reset")


def delta(reason: str | None = None, **fields: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def events(server: Server, call: Call) -> list[Event]:
    return list(Remote(server, None).ask(call))


CHAT = Call(
    model="",
    messages=(Message(role="user", content="Hi"),),
    sampling=Sampling(temperature=0.5),
    max_tokens=9,
)
DONE = Finish(choice=0, reason="stop", prompt_tokens=3, cached_tokens=0, output_tokens=2)
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def test_chat_chunks_become_events() -> None:
    server = Canned(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="Hel"),
        delta(content="lo"),
        delta("stop"),
        USAGE,
    )
    assert events(server, CHAT) == [
        ThinkDelta(0, "hm"),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        DONE,
    ]
    path, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("first", 9, 0.5)


def test_completion_chunks_become_events() -> None:
    text = {"choices": [{"index": 0, "text": "abc", "finish_reason": None}]}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    server = Canned(text, end, USAGE)
    assert events(server, Call(model="", prompt="x")) == [TextDelta(0, "abc"), DONE]
    assert server.asked[0][0] == "/v1/completions"
    assert server.asked[0][1]["prompt"] == "x"


def test_a_named_model_is_asked_for() -> None:
    server = Canned(USAGE)
    remote = Remote(server, "second")
    list(remote.ask(CHAT))
    assert remote.model == server.asked[0][1]["model"] == "second"


def failure(server: Server) -> Failure:
    last = events(server, CHAT)[-1]
    assert isinstance(last, Failure)
    return last


def test_an_error_event_is_the_end() -> None:
    broken = failure(Canned(delta(content="a"), {"error": {"message": "step 7 failed"}}, USAGE))
    assert (broken.error.code, broken.error.message) == (Code.INTERNAL, "step 7 failed")


def test_a_broken_connection_is_a_failure_with_its_reason() -> None:
    assert failure(Canned(delta(content="a"), breaks=True)).error.message.endswith("reset")
