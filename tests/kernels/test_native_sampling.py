"""The native sampler against the torch one, draw by draw."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoints import VOCAB, checkpoint, make_model, prompt
from kernels.natively import Floats, Part, run_parts
from turing_engine.plan.plan import Chunk, Plan, Sampled, Start
from turing_engine.run.native import NativeRunner, native_sampling
from turing_engine.run.runner import RunnerSpec
from turing_engine.run.sampler import Sampler
from turing_kernels.native import NativeEngine
from turing_protocol.codec import unpack, unpack_floats
from turing_protocol.sampling import Sampling

SLOTS = 4


def make_runner(model: object) -> NativeRunner:
    return NativeRunner(
        RunnerSpec(
            model=str(model),
            pages=16,
            kv_bytes=0,
            max_running=SLOTS,
            max_step_tokens=256,
            context=1024,
            threads=2,
        )
    )


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeRunner]:
    """A model whose logits are all 0, so that ``logit_bias`` makes them whatever a test wants."""
    folder: Path = tmp_path_factory.mktemp("flat")
    model = make_model("qwen3")
    with torch.no_grad():
        model.get_parameter("lm_head.weight").zero_()
    model.save_pretrained(folder)
    runner = make_runner(folder)
    yield runner
    runner.close()


def biases(logits: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Return the bias that makes flat logits start with ``logits`` and be -100 behind."""
    rest = [-100.0] * (VOCAB - len(logits))
    return tuple(enumerate([*logits, *rest]))


def both(
    runner: NativeRunner, start: Start, positions: Sequence[int]
) -> tuple[list[Sampled], list[Sampled]]:
    """Sample flat logits at ``positions`` with the native and the torch sampler."""
    runner.run(Plan(1, [], [start], []))
    reference = Sampler(SLOTS, VOCAB, torch.device("cpu"))
    reference.start(start)
    ours, theirs = [], []
    for position in positions:
        at = position - 1
        chunk = Chunk(start.slot, at, [5], list(range(at // 64 + 1)), True)
        ours.extend(runner.run(Plan(2, [chunk], [], [])).rows)
        theirs.extend(reference.sample(torch.zeros(1, VOCAB), [start.slot], [position]))
    return ours, theirs


LEVELS = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 1.0, 3.0])
TOKENS = st.lists(st.integers(0, 11), max_size=6)
SAMPLINGS = st.builds(
    Sampling,
    min_tokens=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 7, VOCAB, VOCAB + 1]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    presence_penalty=st.sampled_from([0.0, 0.75]),
    seed=st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.lists(LEVELS, min_size=1, max_size=12).map(biases),
)


@settings(max_examples=200, deadline=None)
@given(sampling=SAMPLINGS, tokens=st.tuples(TOKENS, TOKENS, TOKENS))
def test_every_rule_is_applied_as_the_torch_sampler_does(
    flat: NativeRunner, sampling: Sampling, tokens: tuple[list[int], list[int], list[int]]
) -> None:
    ours, theirs = both(flat, Start(1, sampling, *tokens), range(40, 46))
    assert [row.ids for row in ours] == [row.ids for row in theirs]


def test_the_draw_is_the_same_at_every_position(flat: NativeRunner) -> None:
    """A thousand draws from a plain distribution, where each id is one level of the uniform."""
    sampling = Sampling(seed=-7, logit_bias=biases([0.0] * 64))
    ours, theirs = both(flat, Start(0, sampling, [], [], []), range(1, 1001))
    assert [row.ids for row in ours] == [row.ids for row in theirs]
    assert len({row.ids[0] for row in ours}) > 50


def test_logprobs_are_those_of_the_raw_logits() -> None:
    folder, _ = checkpoint("llama")
    runner = make_runner(folder)
    sampling = Sampling(
        temperature=1.5, seed=3, logprobs=20, repetition_penalty=1.4, logit_bias=((9, 5.0),)
    )
    ids = prompt(50)
    start = Start(2, sampling, ids, [], [])
    [row] = runner.run(Plan(1, [Chunk(2, 0, ids, [0], True)], [start], [])).rows
    logits = raw_logits(folder, ids)
    reference = Sampler(SLOTS, VOCAB, torch.device("cpu"))
    reference.start(start)
    [wanted] = reference.sample(torch.from_numpy(logits), [2], [50])
    runner.close()
    assert row.ids == wanted.ids
    [ours], [theirs] = row.logprobs, wanted.logprobs
    assert unpack(ours.top_ids) == unpack(theirs.top_ids)
    np.testing.assert_allclose(unpack_floats(ours.top), unpack_floats(theirs.top), atol=1e-5)
    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def raw_logits(model: object, ids: Sequence[int]) -> Floats:
    """Return the logits ``[1, vocab]`` behind ``ids``."""
    engine = NativeEngine(str(model), slots=SLOTS, max_rows=256, pages=16, threads=2)
    engine.start(0, native_sampling(Sampling(temperature=0)))
    _, logits = run_parts(engine, [Part(0, 0, ids, range(len(ids) // 64 + 1))])
    engine.close()
    return logits


def test_rows_that_ask_nothing_get_no_logprobs(flat: NativeRunner) -> None:
    asking = Start(0, Sampling(logprobs=0), [], [], [])
    plain = Start(1, msgspec.structs.replace(asking.sampling, logprobs=-1), [], [], [])
    chunks = [Chunk(slot, 0, [5], [slot], True) for slot in (0, 1)]
    first, second = flat.run(Plan(1, chunks, [asking, plain], [])).rows
    assert len(first.logprobs) == 1
    assert first.logprobs[0].top == b""
    assert second.logprobs == []
    flat.run(Plan(2, [], [], [0, 1]))
