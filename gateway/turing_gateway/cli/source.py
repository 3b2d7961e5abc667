"""Where answers come from: a running server, or engines of our own."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from turing_gateway.call import Call, Event, Failure, Finish, TextDelta, ThinkDelta
from turing_gateway.cli.background import Background
from turing_gateway.cli.client import Server, ServerError
from turing_gateway.cli.options import environment
from turing_gateway.cli.programs import engine_programs
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.generate import Generator as Generation
from turing_gateway.launch import Supervisor
from turing_gateway.text.pool import TextPool
from turing_protocol.errors import Code, TuringError


class Source(Protocol):
    """Answers calls; ``model`` is the name of what answers."""

    model: str

    def ask(self, call: Call) -> Generator[Event]:
        """Yield the events of one choice; closing the generator stops it."""


class Remote:
    """A running server, asked over its OpenAI API."""

    def __init__(self, server: Server, model: str | None) -> None:
        self._server = server
        self.model = model or server.models()[0]

    def ask(self, call: Call) -> Generator[Event]:
        """Yield the server's answer as events."""
        try:
            yield from self._events(call)
        except ServerError as error:
            yield Failure(0, TuringError(Code.NO_ENGINE, str(error)))

    def _events(self, call: Call) -> Iterator[Event]:
        reason, usage = "", {"prompt_tokens": 0, "completion_tokens": 0}
        path, body = self._request(call)
        for chunk in self._server.events(path, body):
            if "error" in chunk:
                yield Failure(0, TuringError(Code.INTERNAL, chunk["error"]["message"]))
                return
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                yield from _deltas(choice)
                reason = choice["finish_reason"] or reason
        yield Finish(
            choice=0,
            reason=reason,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=0,
            output_tokens=usage["completion_tokens"],
        )

    def _request(self, call: Call) -> tuple[str, dict[str, Any]]:
        body = {
            "model": self.model,
            "temperature": call.sampling.temperature,
            "max_tokens": call.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if call.messages:
            turns = [{"role": m.role, "content": m.content} for m in call.messages]
            return "/v1/chat/completions", body | {"messages": turns}
        return "/v1/completions", body | {"prompt": call.prompt}


class Local:
    """Engines of our own, with the gateway's machinery in this process and no HTTP."""

    def __init__(self, background: Background, generation: Generation) -> None:
        self._background = background
        self._generation = generation
        self.model = generation.models()[0].name

    def ask(self, call: Call) -> Generator[Event]:
        """Yield the engine's answer."""
        events: AsyncGenerator[Event] = self._generation.run(call)
        return self._background.iterate(events)


@contextmanager
def local(params: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Local]:
    """Start an engine as ``params`` say and yield it when it is ready; raises ``StartFailed``."""
    with tempfile.TemporaryDirectory(prefix="turing-") as folder, Background() as background:
        engines = engine_programs(params, folder, 1)
        supervisor = Supervisor(list(engines.values()), environ=environment(environ))
        fleet = Fleet(list(engines))
        pool = TextPool()

        async def ready() -> bool:
            return fleet.ready

        async def start() -> Generation:
            await fleet.start()
            await supervisor.start(ready)
            return Generation(fleet, pool)

        async def stop() -> None:
            await asyncio.gather(fleet.close(), supervisor.stop())
            pool.close()

        try:
            yield Local(background, background.call(start()))
        finally:
            background.call(stop())


def _deltas(choice: dict[str, Any]) -> Iterator[Event]:
    delta = choice.get("delta") or {"content": choice.get("text")}
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if thought:
        yield ThinkDelta(0, thought)
    if delta.get("content"):
        yield TextDelta(0, delta["content"])
