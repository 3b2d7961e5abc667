"""A Generator that replays given events, for tests of what is done with them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from fakes.wire import ASSETS, LIMITS, MODEL, make_stats
from turing_gateway.app import build_app
from turing_gateway.call import Begin, Call, Event, Failure, Finish, Forecast, TextDelta
from turing_gateway.drain import Drain
from turing_gateway.fleet.view import EngineView, LinkState
from turing_gateway.fronts.base import Events
from turing_gateway.metrics import Metrics
from turing_gateway.settings import GatewaySettings
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo, Timings

Script = Callable[[Call], Iterable[Event]]


def begin(choice: int = 0, **fields: Any) -> Begin:
    """Return the first event of a choice with a prompt of five tokens, two of them cached."""
    given: dict[str, Any] = {"prompt_tokens": 5, "cached_tokens": 2, "engine": "e0"}
    return Begin(choice=choice, **(given | fields))


def finish(choice: int = 0, reason: str = "stop", output: int = 3, **fields: Any) -> Finish:
    """Return the last event of a choice."""
    given: dict[str, Any] = {"prompt_tokens": 5, "cached_tokens": 2, "timings": Timings(7.0)}
    return Finish(choice=choice, reason=reason, output_tokens=output, **(given | fields))


def hello(call: Call) -> list[Event]:
    """Answer every choice with the two tokens of ``Hello``."""
    events: list[Event] = []
    for choice in range(call.choices):
        events += [begin(choice), TextDelta(choice, "Hel", (7,)), TextDelta(choice, "lo", (8,))]
        events.append(finish(choice, output=2))
    return events


class FakeGenerator:
    """Replays ``script`` and remembers its calls.

    Text is tokenised as one id per character. ``hang`` makes a run wait after its events until
    ``release`` is set, and then finish; ``closed`` counts the runs that were given up or ended.
    """

    def __init__(
        self, script: Script = hello, *, models: Sequence[ModelInfo] = (MODEL,), hang: bool = False
    ) -> None:
        self.script = script
        self.thinking = False
        self.hang = hang
        self.calls: list[Call] = []
        self.closed = 0
        self.release = asyncio.Event()
        self.interrupted = False
        self._models = list(models)

    def interrupt(self) -> None:
        """End hanging runs as a fleet does that stops."""
        self.interrupted = True
        self.release.set()

    def models(self) -> list[ModelInfo]:
        """Return what was given."""
        return self._models

    def find(self, name: str) -> ModelInfo:
        """Return a model by name or alias."""
        for info in self._models:
            if name in (info.name, *info.aliases):
                return info
        raise TuringError(Code.MODEL_NOT_FOUND, f"{name!r} is not served; served: fake")

    async def render(self, call: Call) -> list[int]:
        """Return one id per character of the prompt, or of the messages joined."""
        if isinstance(call.prompt, tuple):
            return list(call.prompt)
        text = call.prompt
        if text is None:
            text = "".join(f"{m.role}:{m.content}\n" for m in call.messages)
        return [ord(character) for character in text]

    async def forecast(self, call: Call) -> Forecast:
        """Admit everything."""
        self.calls.append(call)
        return Forecast(verdict="admit", prompt_tokens=len(await self.render(call)))

    async def run(self, call: Call) -> Events:
        """Yield the script; an exception in it is raised."""
        self.calls.append(call)
        try:
            for event in self.script(call):
                yield event
            if self.hang:
                await self.release.wait()
                if self.interrupted:
                    yield Failure(0, TuringError(Code.DRAINING, "stopping"))
                    return
                for choice in range(call.choices):
                    yield finish(choice)
        finally:
            self.closed += 1

    async def thinks(self, model: str) -> bool:
        """Return what ``thinking`` says."""
        return self.thinking

    async def files(self, model: str) -> Mapping[str, bytes]:
        """Return those of the scripted model."""
        return ASSETS

    async def tokenize(self, model: str, text: str, *, add_special: bool) -> list[int]:
        """Return one id per character, behind a 1 with special tokens."""
        return [1] * add_special + [ord(character) for character in text]

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        """Return the characters of ``ids``."""
        return "".join(map(chr, ids))


def fails(code: Code, message: str = "no", **fields: Any) -> Script:
    """Return a script of one failure before anything else."""
    return lambda call: [Failure(0, TuringError(code, message, **fields))]


def make_view(**fields: Any) -> EngineView:
    """Return the view of an engine that is up and idle."""
    given: dict[str, Any] = {
        "endpoint": "tcp://e0:5555",
        "state": LinkState.READY,
        "name": "e0",
        "epoch": 1,
        "info": MODEL,
        "limits": LIMITS,
        "stats": make_stats(),
    }
    return EngineView(**(given | fields))


class Gateway:
    """An application over a fake generator, with everything that a test may want to touch."""

    def __init__(
        self,
        script: Script = hello,
        *,
        hang: bool = False,
        models: Sequence[ModelInfo] = (MODEL,),
        views: Sequence[EngineView] | None = None,
        **settings: Any,
    ) -> None:
        self.generator = FakeGenerator(script, hang=hang, models=models)
        self.views = [make_view()] if views is None else list(views)
        self.drain = Drain()
        self.settings = GatewaySettings(**settings)
        self.metrics = Metrics(lambda: self.views, alias=self.settings.metrics_alias)
        self.app: Starlette = build_app(
            self.generator, lambda: self.views, self.metrics, self.settings, self.drain
        )
        self.client = TestClient(self.app, base_url="http://127.0.0.1:8000")

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """Post JSON; header names are given with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, json=body, headers=named)

    def chat(self, **fields: Any) -> Any:
        """Post a chat body with one message, but for what is given."""
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]} | fields
        return self.post("/v1/chat/completions", body)

    def complete(self, **fields: Any) -> Any:
        """Post a completions body, but for what is given."""
        return self.post("/v1/completions", {"model": "fake", "prompt": "hi"} | fields)

    def call(self) -> Call:
        """Return the last call that reached the generator."""
        return self.generator.calls[-1]
