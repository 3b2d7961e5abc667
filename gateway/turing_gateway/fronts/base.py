"""What every API front is given, and the small steps they share."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.routing import Route

from turing_gateway.call import Call, Event, Forecast
from turing_gateway.headers import Controls, ControlsBody, merged, read_headers
from turing_gateway.modelref import ModelRef, parse_model_ref
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Limits, ModelInfo, Stats

Events = AsyncGenerator[Event, None]


class Generator(Protocol):
    """Runs calls on engines; what cannot be done is a ``TuringError``."""

    def models(self) -> Sequence[ModelInfo]:
        """Return the served models."""

    def find(self, name: str) -> ModelInfo:
        """Return the model served as ``name``, or raise ``Code.MODEL_NOT_FOUND``."""

    async def render(self, call: Call) -> list[int]:
        """Return the exact prompt ids that ``call`` would prefill."""

    async def forecast(self, call: Call) -> Forecast:
        """Return what would become of ``call`` if it came now."""

    def run(self, call: Call) -> Events:
        """Yield the events of every choice of ``call``; closing the generator aborts it.

        The first event is a ``Begin``, or the ``Failure`` of the call.
        """

    async def thinks(self, model: str) -> bool:
        """Return whether ``model`` can reason before it answers."""

    async def files(self, model: str) -> Mapping[str, bytes]:
        """Return the files that engines serve with a model: tokenizer, template, metadata."""

    async def tokenize(self, model: str, text: str, *, add_special: bool) -> list[int]:
        """Return the ids of ``text``."""

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens included."""


class View(Protocol):
    """What the gateway believes of one engine; read only."""

    @property
    def name(self) -> str:
        """The engine's name; empty before its first Welcome."""

    @property
    def info(self) -> ModelInfo | None:
        """Facts of its model."""

    @property
    def limits(self) -> Limits | None:
        """What it can take."""

    @property
    def stats(self) -> Stats | None:
        """Its last published snapshot."""

    @property
    def alive(self) -> bool:
        """Whether it is connected and heard of."""

    @property
    def ready(self) -> bool:
        """Whether it takes new work."""


Views = Callable[[], Sequence[View]]


@dataclass(frozen=True)
class Services:
    """Everything a front may use.

    ``watch`` passes events on and measures them, ``ready`` tells whether this gateway can serve,
    ``version`` names the build.
    """

    generator: Generator
    watch: Callable[[Call, Events], Events]
    views: Views
    ready: Callable[[], bool]
    version: str

    def run(self, call: Call) -> Events:
        """Return the measured events of ``call``; closing them aborts it."""
        return self.watch(call, self.generator.run(call))

    @property
    def fingerprint(self) -> str:
        """OpenAI's ``system_fingerprint``: equal for answers of the same build."""
        return f"turing-{self.version}"


class Front(Protocol):
    """One API: it turns HTTP into Calls and Events into HTTP."""

    def routes(self) -> list[Route]:
        """Return the routes that this front serves."""


def read_controls(request: Request, body: ControlsBody | None = None) -> Controls:
    """Return what headers and the body's ``turing`` ask for; note the lane for error answers."""
    controls = read_headers(request.headers)
    if body is not None:
        controls = merged(controls, body)
    request.state.lane = controls.lane
    return controls


def resolve_model(generator: Generator, name: str | None) -> tuple[ModelInfo, ModelRef]:
    """Return the served model called ``name``, and the name and effort that it was asked by.

    A name that is served as it stands wins over reading a provider or an effort into it. No name
    means the only served model.
    """
    if name is None:
        info = _only(generator.models())
        return info, ModelRef(info.name)
    try:
        return generator.find(name), ModelRef(name)
    except TuringError as error:
        ref = parse_model_ref(name)
        if error.code is not Code.MODEL_NOT_FOUND or ref.name == name:
            raise
        return generator.find(ref.name), ref


def serving(views: Views, info: ModelInfo) -> list[View]:
    """Return the engines, up or not, that serve this very model."""
    wanted = (info.name, info.digest)
    return [v for v in views() if v.info and (v.info.name, v.info.digest) == wanted]


def context_of(views: Views, info: ModelInfo) -> int:
    """Return the longest prompt + output in tokens that some engine with this model takes."""
    known = [v.limits.context for v in views() if v.limits and v.info and v.info.name == info.name]
    return max(known, default=info.context)


def _only(models: Sequence[ModelInfo]) -> ModelInfo:
    if not models:
        raise TuringError(Code.NO_ENGINE, "no engine is connected")
    if len(models) > 1:
        served = ", ".join(info.name for info in models)
        raise TuringError(
            Code.INVALID, f"model is required when several are served: {served}", param="model"
        )
    return models[0]
