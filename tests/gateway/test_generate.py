"""One call through rendering, admission, engines and back to events."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.engine import FakeEngine, expected
from fakes.fleets import MakeEngine, fleet_of, until
from fakes.wire import LIMITS, MODEL
from turing_gateway.call import Begin, Call, Event, Failure, Finish, Message, TextDelta
from turing_gateway.choice import Resume
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.generate import Generator
from turing_gateway.text.pool import TextPool
from turing_protocol.codec import unpack
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Limits
from turing_protocol.sampling import Knobs, Sampling

pytestmark = pytest.mark.anyio

GREEDY = Sampling(temperature=0.0)


@asynccontextmanager
async def generator_of(
    *engines: FakeEngine, resume: Resume | None = None
) -> AsyncIterator[tuple[Generator, Fleet]]:
    async with fleet_of(*engines) as fleet:
        pool = TextPool()
        yield Generator(fleet, pool, resume=resume or Resume()), fleet
        pool.close()


def make_call(prompt: str = "Hello", **fields: Any) -> Call:
    values: dict[str, Any] = {"model": "fake", "sampling": GREEDY, "max_tokens": 20} | fields
    return Call(prompt=prompt, **values)


def answer(prompt: str, max_tokens: int, **sampling: Any) -> str:
    fields = {"temperature": 0.0} | sampling
    return bytes(expected(prompt.encode(), Sampling(max_tokens=max_tokens, **fields))).decode()


async def collect(generator: Generator, call: Call) -> list[Event]:
    async with asyncio.timeout(30), aclosing(generator.run(call)) as events:
        return [event async for event in events]


def text_of(events: Sequence[Event], choice: int = 0) -> str:
    deltas = [e for e in events if isinstance(e, TextDelta) and e.choice == choice]
    return "".join(delta.text for delta in deltas)


async def refusal(generator: Generator, call: Call) -> TuringError:
    (failure,) = await collect(generator, call)
    assert isinstance(failure, Failure)
    assert failure.choice == 0
    return failure.error


async def test_a_call_begins_speaks_and_finishes(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    async with generator_of(engine) as (generator, _):
        first, *deltas, last = await collect(generator, make_call(request_id="r1", salt="t"))
    assert isinstance(first, Begin)
    assert (first.choice, first.prompt_tokens, first.engine) == (0, 5, "e0")
    assert text_of(deltas) == answer("Hello", 20)
    assert isinstance(last, Finish)
    assert (last.reason, last.prompt_tokens, last.output_tokens) == ("length", 5, 20)
    (submit,) = engine.submitted
    assert (submit.trace, submit.salt, submit.sampling.max_tokens) == ("r1", "t", 20)


async def test_max_tokens_is_what_is_left_of_the_context(make_engine: MakeEngine) -> None:
    limits = replace(LIMITS, context=100)
    async with generator_of(make_engine(limits=limits).start()) as (generator, _):
        events = await collect(generator, make_call(max_tokens=None))
        assert isinstance(events[-1], Finish)
        assert events[-1].output_tokens == 95
        error = await refusal(generator, make_call(max_tokens=96))
    assert error.code == Code.CONTEXT_TOO_LONG


async def test_max_tokens_is_cut_to_context_and_memory_where_a_call_says_so(
    make_engine: MakeEngine,
) -> None:
    small = replace(LIMITS, context=256, pages_total=1)
    engine = make_engine(limits=small).start()
    async with generator_of(engine) as (generator, _):
        events = await collect(generator, make_call(max_tokens=32_000, clamp=True))
        error = await refusal(generator, make_call("x" * 64, max_tokens=9, clamp=True))
    last = events[-1]
    assert isinstance(last, Finish)
    assert (last.reason, last.output_tokens) == ("length", 64 - 5)
    assert error.message == "prompt is too long: 64 tokens > 63 maximum"


async def test_the_calls_of_a_session_meet_at_one_engine(make_engine: MakeEngine) -> None:
    engines = [make_engine(name).start() for name in ("e0", "e1")]
    async with generator_of(*engines) as (generator, _):
        for session, met in [("s", 1), ("", 2)]:
            calls = [make_call(f"{i}", max_tokens=1, session=session) for i in range(12)]
            firsts = [(await collect(generator, call))[0] for call in calls]
            assert len({e.engine for e in firsts if isinstance(e, Begin)}) == met


async def test_chat_is_rendered_the_same_for_render_and_run(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    async with generator_of(engine) as (generator, _):
        call = Call(model="", messages=(Message(role="user", content="Hi"),), max_tokens=1)
        ids = await generator.render(call)
        await collect(generator, call)
    assert unpack(engine.submitted[0].prompt) == ids
    assert bytes(token for token in ids if token < 256) == b"user\nHi\nassistant\n"


async def test_text_goes_to_ids_and_back_also_without_engines(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    async with generator_of(engine) as (generator, fleet):
        assert await generator.tokenize("fake", "Hé", add_special=True) == list("Hé".encode())
        await asyncio.to_thread(engine.kill)
        await until(fleet, lambda: not fleet.ready)
        assert await generator.tokenize("fake", "Hi", add_special=True) == [72, 105]
        assert await generator.detokenize("fake", [72, 105]) == "Hi"
        assert await generator.render(make_call("abc")) == [97, 98, 99]
        with pytest.raises(TuringError, match="vocabulary") as caught:
            await generator.detokenize("fake", [MODEL.vocab_size])
        error = await refusal(generator, make_call())
    assert caught.value.param == "tokens"
    assert (error.code, error.retry_ms) == (Code.NO_ENGINE, 2000)


async def test_models_are_found_by_name_alias_and_adapter(make_engine: MakeEngine) -> None:
    model = replace(MODEL, aliases=("alias",))
    engine = make_engine(model=model, adapters=("sql",)).start()
    async with generator_of(engine) as (generator, _):
        for name in ("fake", "alias", "sql", ""):
            assert generator.find(name) == model
        with pytest.raises(TuringError, match="served: fake, sql") as caught:
            generator.find("other")
        assert (caught.value.code, caught.value.param) == (Code.MODEL_NOT_FOUND, "model")
        await collect(generator, make_call(model="sql"))
        await collect(generator, make_call(adapter="sql"))
        await collect(generator, make_call(model="alias"))
        assert [submit.adapter for submit in engine.submitted] == ["sql", "sql", ""]
        error = await refusal(generator, make_call(adapter="none"))
    assert (error.code, error.param) == (Code.MODEL_NOT_FOUND, "X-Turing-Tenant-ID")


async def test_several_models_need_a_name(make_engine: MakeEngine) -> None:
    other = replace(MODEL, name="other", digest="sha256:1")
    engines = make_engine("e0").start(), make_engine("e1", model=other).start()
    async with generator_of(*engines) as (generator, _):
        assert {info.name for info in generator.models()} == {"fake", "other"}
        with pytest.raises(TuringError) as caught:
            generator.find("")
        assert caught.value.code == Code.MODEL_NOT_FOUND
        for _ in range(5):
            first, *_ = await collect(generator, make_call(model="other", max_tokens=1))
            assert isinstance(first, Begin)
            assert first.engine == "e1"


async def test_nothing_heard_of_is_no_engine(make_engine: MakeEngine) -> None:
    async with fleet_of(make_engine(), wait=False) as fleet:
        generator = Generator(fleet, TextPool())
        assert (await refusal(generator, make_call())).code == Code.NO_ENGINE


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"choices": 0}, Code.INVALID, "n"),
        ({"prompt": ""}, Code.INVALID, "prompt"),
        ({"prompt": (1, 258)}, Code.INVALID, "prompt"),
        ({"max_tokens": -1}, Code.INVALID, "max_tokens"),
        ({"sampling": Sampling(temperature=3)}, Code.INVALID, "temperature"),
        ({"sampling": Sampling(min_tokens=21)}, Code.INVALID, "min_tokens"),
        ({"sampling": Sampling(logit_bias=((258, 1.0),))}, Code.INVALID, "logit_bias"),
        ({"seed": 2**63}, Code.INVALID, "seed"),
        ({"knobs": Knobs(sparsity=0.5)}, Code.UNSUPPORTED, "X-Turing-Sparsity"),
        ({"max_tokens": 5000}, Code.CONTEXT_TOO_LONG, "prompt"),
    ],
)
async def test_bad_input_is_one_failure_that_names_the_field(
    make_engine: MakeEngine, fields: dict[str, Any], code: Code, param: str
) -> None:
    engine = make_engine().start()
    async with generator_of(engine) as (generator, _):
        error = await refusal(generator, make_call(**fields))
    assert (error.code, error.param) == (code, param)
    assert engine.submitted == []


async def test_seeds(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    sampling = Sampling(temperature=1.0)
    async with generator_of(engine) as (generator, _):
        call = make_call(sampling=sampling, seed=7, choices=3)
        events = await collect(generator, call)
        for choice in range(3):
            seeded = answer("Hello", 20, temperature=1.0, seed=7 + choice)
            assert text_of(events, choice) == seeded
        await collect(generator, make_call(sampling=sampling))
        await collect(generator, make_call(sampling=sampling))
        await collect(generator, make_call(sampling=sampling, seed=2**63 - 1, choices=2))
    drawn, again, top, wrapped = [submit.sampling.seed for submit in engine.submitted[3:]]
    assert drawn != again
    assert {top, wrapped} == {2**63 - 1, -(2**63)}


async def test_choices_run_side_by_side(make_engine: MakeEngine) -> None:
    async with generator_of(make_engine().start()) as (generator, _):
        events = await collect(generator, make_call(choices=4))
    for choice in range(4):
        own = [event for event in events if event.choice == choice]
        assert isinstance(own[0], Begin)
        assert isinstance(own[-1], Finish)
        assert text_of(own, choice) == answer("Hello", 20)
    assert [event.choice for event in events] != sorted(event.choice for event in events)


async def test_a_stop_string_ends_the_engine_too(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    text = answer("Hello", 4000)
    stop = text[10:14]
    async with generator_of(engine) as (generator, fleet):
        *events, last = await collect(generator, make_call(max_tokens=4000, stop=(stop,)))
        assert text_of(events) == text[: text.index(stop)]
        assert isinstance(last, Finish)
        assert (last.reason, last.stop, last.prompt_tokens) == ("stop", stop, 5)
        assert last.timings.decode_ms > 0
        while not engine.aborted:
            await fleet.changed(0.01)
        assert engine.running == []


async def test_a_client_that_leaves_frees_everything(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with generator_of(engine) as (generator, fleet):
        for choices in (1, 3):
            async with aclosing(generator.run(make_call(max_tokens=4000, choices=choices))) as run:
                await anext(run)
            while engine.running or engine.waiting:
                await asyncio.sleep(0.01)
            assert fleet.views[0].own_streams == 0
    assert sorted(engine.aborted) == [1, 2, 3, 4]


async def test_a_client_that_leaves_the_queue_frees_its_place(make_engine: MakeEngine) -> None:
    limits = replace(LIMITS, max_running=1)
    engine = make_engine(limits=limits, step_seconds=0.01).start()
    async with generator_of(engine) as (generator, _):
        work = [
            asyncio.create_task(collect(generator, make_call(prompt, max_tokens=4000)))
            for prompt in ("first", "second")
        ]
        while not (engine.running and engine.waiting):
            await asyncio.sleep(0.01)
        work[engine.waiting[0].rid - 1].cancel()
        while engine.waiting:
            await asyncio.sleep(0.01)
        assert len(engine.aborted) == len(engine.running) == 1
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def test_lost_engines_are_not_seen_by_clients(make_engine: MakeEngine) -> None:
    engines = [make_engine(name, step_seconds=0.01).start() for name in ("e0", "e1")]
    async with generator_of(*engines) as (left, _), generator_of(*engines) as (right, _):
        prompts = [f"prompt {number}" for number in range(16)]
        work = [
            asyncio.create_task(collect(generator, make_call(prompt, max_tokens=100)))
            for generator in (left, right)
            for prompt in prompts
        ]
        while not all(sum(s.output > 10 for s in engine.running) >= 4 for engine in engines):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engines[0].kill)
        for events, prompt in zip(await asyncio.gather(*work), prompts * 2, strict=True):
            assert [type(event) for event in events].count(Begin) == 1
            assert text_of(events) == answer(prompt, 100)
            last = events[-1]
            assert isinstance(last, Finish)
            assert (last.prompt_tokens, last.output_tokens) == (len(prompt), 100)
    assert any(submit.prior for submit in engines[1].submitted)


async def test_a_restart_of_the_only_engine_is_not_seen(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with generator_of(engine) as (generator, _):
        sampling = Sampling(temperature=1.0)
        work = asyncio.create_task(
            collect(generator, make_call(max_tokens=60, sampling=sampling, seed=3))
        )
        while not engine.running or engine.running[0].output < 10:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.kill)
        await asyncio.sleep(0.3)
        engine.start()
        assert text_of(await work) == answer("Hello", 60, temperature=1.0, seed=3)


async def test_with_no_engine_left_the_stream_fails(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with generator_of(engine, resume=Resume(seconds=0.2)) as (generator, _):
        work = asyncio.create_task(collect(generator, make_call(max_tokens=4000)))
        while not engine.running or engine.running[0].output < 10:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.kill)
        first, *_, last = await work
    assert isinstance(first, Begin)
    assert isinstance(last, Failure)
    assert last.error.code == Code.ENGINE_LOST


async def test_a_call_that_never_began_may_come_again(make_engine: MakeEngine) -> None:
    engine = make_engine(limits=replace(LIMITS, max_running=0)).start()
    async with generator_of(engine, resume=Resume(seconds=0.1)) as (generator, _):
        work = asyncio.create_task(refusal(generator, make_call()))
        while not engine.waiting:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.kill)
        error = await work
    assert (error.code, error.retry_ms) == (Code.NO_ENGINE, 2000)


async def test_a_fleet_that_closes_ends_its_streams(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with generator_of(engine, resume=Resume(seconds=1000)) as (generator, fleet):
        work = asyncio.create_task(collect(generator, make_call(max_tokens=4000)))
        while not engine.running or engine.running[0].output < 10:
            await asyncio.sleep(0.01)
        await fleet.close()
        *_, last = await work
    assert isinstance(last, Failure)
    assert last.error.code == Code.ENGINE_LOST


async def test_an_interrupted_fleet_ends_its_streams_and_takes_no_more(
    make_engine: MakeEngine,
) -> None:
    engines = [make_engine(name, step_seconds=0.01).start() for name in ("e0", "e1")]
    async with generator_of(*engines, resume=Resume(seconds=1000)) as (generator, fleet):
        work = asyncio.create_task(collect(generator, make_call(max_tokens=4000)))
        while not any(sequence.output for engine in engines for sequence in engine.running):
            await asyncio.sleep(0.01)
        fleet.interrupt()
        *_, last = await work
        error = await refusal(generator, make_call())
        await until(fleet, lambda: not any(engine.running for engine in engines))
    assert isinstance(last, Failure)
    assert (last.error.code, error.code) == (Code.DRAINING, Code.DRAINING)
    assert sum(len(engine.submitted) for engine in engines) == 1


async def test_a_stream_is_carried_a_limited_number_of_times(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    engine.refuse.extend([Code.ENGINE_LOST] * 3)
    async with generator_of(engine, resume=Resume(limit=2)) as (generator, fleet):
        error = await refusal(generator, make_call())
        assert error.code == Code.ENGINE_LOST
        assert len(engine.submitted) == 3
        await until(fleet, lambda: fleet.ready)
        engine.refuse.extend([Code.ENGINE_LOST] * 2)
        assert text_of(await collect(generator, make_call())) == answer("Hello", 20)


async def test_a_full_engine_sends_the_call_to_one_other(make_engine: MakeEngine) -> None:
    engines = [make_engine(name).start() for name in ("e0", "e1", "e2")]
    for engine in engines:
        engine.refuse.extend([Code.OVERLOADED] * 2)
    async with generator_of(*engines) as (generator, _):
        error = await refusal(generator, make_call())
    assert (error.code, error.retry_ms) == (Code.OVERLOADED, 2000)
    assert sorted(len(engine.submitted) for engine in engines) == [0, 1, 1]


async def test_one_full_engine_alone_is_told_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    engine.refuse.append(Code.OVERLOADED)
    async with generator_of(engine) as (generator, _):
        assert (await refusal(generator, make_call())).code == Code.OVERLOADED
    assert len(engine.submitted) == 1


async def test_a_stream_on_its_way_waits_for_a_full_engine(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with generator_of(engine) as (generator, _):
        work = asyncio.create_task(collect(generator, make_call(max_tokens=60)))
        while not engine.running or engine.running[0].output < 10:
            await asyncio.sleep(0.01)
        engine.refuse.extend([Code.OVERLOADED] * 2)
        await asyncio.to_thread(engine.restart)
        assert text_of(await work) == answer("Hello", 60)
    assert len(engine.submitted) == 4


async def test_other_failures_are_final(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    engine.refuse.append(Code.STEP_FAILED)
    async with generator_of(engine) as (generator, _):
        assert (await refusal(generator, make_call())).code == Code.STEP_FAILED
    assert len(engine.submitted) == 1


@pytest.mark.parametrize(
    ("lane", "reserved", "code"),
    [
        (Lane.BATCH, 899, None),
        (Lane.BATCH, 900, Code.OVERLOADED),
        (Lane.BACKGROUND, 950, Code.SHED),
        (Lane.INTERACTIVE, 5000, None),
    ],
)
async def test_memory_above_the_marks_is_answered_early(
    make_engine: MakeEngine, lane: Lane, reserved: int, code: Code | None
) -> None:
    engine = make_engine()
    engine.reserved_elsewhere = reserved
    engine.start()
    async with generator_of(engine) as (generator, fleet):
        await until(fleet, lambda: fleet.views[0].load == reserved)
        *_, last = await collect(generator, make_call(lane=lane))
    assert (last.error.code if isinstance(last, Failure) else None) == code
    if isinstance(last, Failure):
        assert last.error.retry_ms == 2000
        assert engine.submitted == []


@pytest.mark.parametrize(
    ("reserved", "fields", "verdict"),
    [
        (0, {}, "admit"),
        (899, {"lane": Lane.BATCH}, "admit"),
        (900, {"lane": Lane.BATCH}, "429"),
        (950, {"lane": Lane.BACKGROUND}, "503"),
        (1000, {}, "wait"),
        (0, {"choices": 65}, "wait"),
        (0, {"max_tokens": 5000}, "never"),
    ],
)
async def test_a_forecast_says_what_would_become_of_a_call_and_books_nothing(
    make_engine: MakeEngine, reserved: int, fields: dict[str, Any], verdict: str
) -> None:
    engine = make_engine()
    engine.reserved_elsewhere = reserved
    engine.start()
    async with generator_of(engine) as (generator, fleet):
        await until(fleet, lambda: fleet.views[0].load == reserved)
        found = await generator.forecast(make_call(**fields))
        assert (found.verdict, found.prompt_tokens) == (verdict, 5)
        assert bool(found.reason) == (verdict != "admit")
        assert bool(found.retry_after_ms) == (verdict in ("429", "503"))
        if verdict != "never":
            choices = fields.get("choices", 1)
            assert (found.pages, found.pages_booked) == (choices, reserved)
            assert (found.pages_total, found.queue_ahead, found.engine) == (1000, 0, "e0")
        assert fleet.views[0].load == reserved
    assert engine.submitted == []


async def test_a_forecast_refuses_what_is_wrong_with_a_call(make_engine: MakeEngine) -> None:
    async with generator_of(make_engine().start()) as (generator, _):
        with pytest.raises(TuringError) as caught:
            await generator.forecast(make_call(model="other"))
    assert caught.value.code is Code.MODEL_NOT_FOUND


async def test_controls_go_to_engines_that_have_them(make_engine: MakeEngine) -> None:
    rich = Limits(4096, 1000, 64, 256, sparsity_levels=(0.25,), max_draft_tokens=4)
    engines = make_engine("e0").start(), make_engine("e1", limits=rich).start()
    async with generator_of(*engines) as (generator, _):
        for number in range(5):
            call = make_call(f"{number}", max_tokens=1, knobs=Knobs(draft_tokens=4))
            first, *_ = await collect(generator, call)
            assert isinstance(first, Begin)
            assert first.engine == "e1"


async def test_logprobs_come_with_the_text(make_engine: MakeEngine) -> None:
    async with generator_of(make_engine().start()) as (generator, _):
        sampling = Sampling(temperature=0.0, logprobs=1)
        events = await collect(generator, make_call(sampling=sampling))
    infos = [info for e in events if isinstance(e, TextDelta) for info in e.tokens]
    assert b"".join(info.data for info in infos).decode() == answer("Hello", 20)


async def test_the_end_of_sequence_token_is_not_shown(make_engine: MakeEngine) -> None:
    engine = make_engine(script=[b"done"]).start()
    async with generator_of(engine) as (generator, _):
        *events, last = await collect(generator, make_call())
    assert text_of(events) == "done"
    assert isinstance(last, Finish)
    assert (last.reason, last.output_tokens) == ("stop", 5)
