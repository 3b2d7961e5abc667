"""Runs one Call: find the model, render, check, admit, then stream every choice from engines."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from turing_gateway.call import Call, Event, Failure, Forecast
from turing_gateway.checks import capacity, output_limit, unsupported
from turing_gateway.choice import RESUME, Choice, Job, Resume, merge
from turing_gateway.fleet.assets import AssetSet
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.fleet.picker import Want
from turing_gateway.fleet.view import EngineView
from turing_gateway.forecast import forecast
from turing_gateway.headers import TENANT
from turing_gateway.text.model import TextModel, text_size
from turing_gateway.text.pool import TextPool
from turing_protocol import prefix
from turing_protocol.admission import RETRY_MS, decide, mark, pages_needed
from turing_protocol.codec import pack
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Limits, ModelInfo
from turing_protocol.sampling import Sampling, check


class Catalog(Protocol):
    """Where models and their files are known from: engines, or a folder."""

    def models(self) -> list[ModelInfo]:
        """Return every model known, one per name."""

    def adapters(self, info: ModelInfo) -> set[str]:
        """Return the adapters that are loaded on a model."""

    async def assets(self, info: ModelInfo) -> AssetSet:
        """Return the files of a model; ``NO_ENGINE`` when they cannot be had now."""


class Generator:
    """What fronts are handed: models, rendering and generation over the engines of a fleet.

    ``catalog`` is where models are known from, the fleet itself if not given.
    """

    def __init__(
        self,
        fleet: Fleet,
        pool: TextPool,
        *,
        catalog: Catalog | None = None,
        resume: Resume = RESUME,
    ) -> None:
        self._fleet = fleet
        self._catalog: Catalog = fleet if catalog is None else catalog
        self._pool = pool
        self._resume = resume
        self._texts: dict[tuple[str, str], asyncio.Task[TextModel]] = {}

    async def load(self) -> None:
        """Load the text side of every model known by now; a broken file is raised."""
        for info in self.models():
            await self._text(info)

    def models(self) -> list[ModelInfo]:
        """Return every model known, also while its engines are away."""
        return self._catalog.models()

    def find(self, name: str) -> ModelInfo:
        """Return the model called ``name``: its name, an alias, or an adapter on it.

        An empty name is the only model there is. Unknown names are ``MODEL_NOT_FOUND`` and list
        what is served; before any engine has been heard of it is ``NO_ENGINE``.
        """
        models = self.models()
        if not models:
            raise TuringError(Code.NO_ENGINE, "no engine is connected yet", retry_ms=RETRY_MS)
        if not name and len(models) == 1:
            return models[0]
        for info in models:
            if name == info.name or name in info.aliases:
                return info
        for info in models:
            if name in self._catalog.adapters(info):
                return info
        raise self._not_found(f"the model {name[:80]!r} is not served here", "model")

    async def thinks(self, model: str) -> bool:
        """Return whether ``model`` can reason before it answers."""
        return (await self._text(self.find(model))).thinks

    async def render(self, call: Call) -> list[int]:
        """Return the prompt ids that ``run`` would submit."""
        return await self._render(call, await self._text(self.find(call.model)))

    async def files(self, model: str) -> Mapping[str, bytes]:
        """Return the files that an engine serves with ``model``."""
        return (await self._catalog.assets(self.find(model))).files

    async def tokenize(self, model: str, text: str, *, add_special: bool) -> list[int]:
        """Return the ids of raw text, as a raw prompt gets them."""
        loaded = await self._text(self.find(model))
        return await self._pool.run(
            len(text), partial(loaded.encode, text, add_special=add_special)
        )

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        """Return the text of ids; one outside of the vocabulary is ``INVALID`` on ``tokens``."""
        loaded = await self._text(self.find(model))
        return await self._pool.run(len(ids), partial(loaded.decode, ids))

    async def run(self, call: Call) -> AsyncGenerator[Event, None]:
        """Yield the events of all choices as they come; closing it aborts everything it started.

        Each choice gives ``Begin``, text events and one ``Finish`` or ``Failure``. What is wrong
        with the whole call is one ``Failure`` of choice 0 and nothing else; only what is broken in
        this process is raised.
        """
        try:
            choices = await self._prepare(call)
        except TuringError as error:
            yield Failure(0, error)
            return
        async with aclosing(merge([choice.events() for choice in choices])) as events:
            async for event in events:
                yield event

    async def forecast(self, call: Call) -> Forecast:
        """Return what ``run`` would do with ``call`` now; what is wrong with it is raised."""
        try:
            job, _, ids = await self._job(call)
        except TuringError as error:
            if error.code is not Code.CONTEXT_TOO_LONG:
                raise
            ids = await self.render(call)
            return Forecast(verdict="never", reason=error.message, prompt_tokens=len(ids))
        engine, limits = self._engine(job)
        room = engine.room(limits)
        return forecast(room, engine, job, len(ids))

    async def _prepare(self, call: Call) -> list[Choice]:
        """Return the choices of a call that was checked and admitted as a whole."""
        job, text, ids = await self._job(call)
        engine, limits = self._engine(job)
        verdict = decide(engine.room(limits), job.call.lane, job.want.pages, job.call.choices)
        if verdict.code is not None:
            raise TuringError(verdict.code, verdict.message, retry_ms=verdict.retry_ms)
        return [
            Choice(self._fleet, job, text.stream(job.call, index, prompt=ids), index, self._resume)
            for index in range(job.call.choices)
        ]

    async def _job(self, call: Call) -> tuple[Job, TextModel, list[int]]:
        """Return what to submit for a call, its model's text side and its prompt ids."""
        if call.choices < 1:
            raise TuringError(Code.INVALID, "n must be at least 1", param="n")
        info = self.find(call.model)
        adapter = self._adapter(call, info)
        text = await self._text(info)
        ids = await self._render(call, text)
        call = text.constrained(call, ids)
        sampling = _sampling(call, ids, info, self._able(call, info))
        want = _want(call, ids, info, adapter, len(ids) + sampling.max_tokens)
        return Job(call, sampling, pack(ids), want, lambda view: _applies(call, view)), text, ids

    async def _render(self, call: Call, text: TextModel) -> list[int]:
        return await self._pool.run(text_size(call), partial(text.render, call))

    def _adapter(self, call: Call, info: ModelInfo) -> str:
        """Return the adapter that a call names, by header or as its model."""
        if not call.adapter:
            return "" if call.model in ("", info.name, *info.aliases) else call.model
        if call.adapter not in self._catalog.adapters(info):
            raise self._not_found(f"the adapter {call.adapter[:80]!r} is not loaded", TENANT)
        return call.adapter

    def _able(self, call: Call, info: ModelInfo) -> list[Limits]:
        """Return the limits of every ready engine that can apply the controls of ``call``."""
        ready = [v.limits for v in self._fleet.serving(info) if v.ready and v.limits]
        if not ready:
            raise TuringError(
                Code.NO_ENGINE, f"no engine is ready for {info.name}", retry_ms=RETRY_MS
            )
        refusals = [unsupported(call, limits) for limits in ready]
        able = [limits for limits, refusal in zip(ready, refusals, strict=True) if refusal is None]
        if not able and refusals[0] is not None:
            raise refusals[0]
        return able

    def _engine(self, job: Job) -> tuple[EngineView, Limits]:
        engine = job.choose(self._fleet.views, frozenset())
        if engine is None or engine.limits is None:
            raise TuringError(
                Code.NO_ENGINE, "no engine can take the request now", retry_ms=RETRY_MS
            )
        return engine, engine.limits

    async def _text(self, info: ModelInfo) -> TextModel:
        """Return the text side of a model, loaded once for the same files."""
        assets = await self._catalog.assets(info)
        key = (info.digest, assets.key)
        task = self._texts.get(key)
        if task is None or (task.done() and task.exception() is not None):
            work = asyncio.to_thread(TextModel, info, assets.files)
            task = self._texts[key] = asyncio.create_task(work)
        # Shared, so one caller that leaves must not take it from the others.
        return await asyncio.shield(task)

    def _not_found(self, words: str, param: str) -> TuringError:
        models = self.models()
        names = [info.name for info in models]
        names += sorted({name for info in models for name in self._catalog.adapters(info)})
        served = ", ".join(names)
        return TuringError(Code.MODEL_NOT_FOUND, f"{words}; served: {served}", param=param)


def _sampling(call: Call, ids: Sequence[int], info: ModelInfo, able: Sequence[Limits]) -> Sampling:
    """Return the sampling to run with: ``max_tokens`` and seed filled in, all of it checked."""
    context = max(capacity(call, limits) for limits in able)
    seed = secrets.randbits(63) if call.seed is None else call.seed
    most = output_limit(call, ids, context)
    sampling = replace(call.sampling, max_tokens=most, seed=seed)
    check(sampling, info.vocab_size)
    return sampling


def _want(call: Call, ids: Sequence[int], info: ModelInfo, adapter: str, tokens: int) -> Want:
    root = prefix.salt(
        model=info.digest,
        adapter=adapter,
        sparsity=call.knobs.sparsity or 0.0,
        codec=str(call.knobs.svd_kv),
        tenant=call.salt,
    )
    # A session stays where its pages are, and sessions that begin alike do not crowd one engine.
    home = list(call.session.encode()) if call.session else ids
    return Want(
        digest=info.digest,
        key=prefix.home_key(root, home),
        pages=pages_needed(tokens),
        tokens=tokens,
        adapter=adapter,
        mark=mark(call.lane),
    )


def _applies(call: Call, view: EngineView) -> bool:
    return view.limits is not None and unsupported(call, view.limits) is None
