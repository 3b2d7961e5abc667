"""What every runner must do, whatever computes its steps.

Add a runner by adding to ``RUNNERS`` a function that builds it for a tiny llama checkpoint. The
suite compares a runner with itself only, so a quantising one passes too.
"""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from engine.checkpoints import VOCAB, checkpoint, prompt
from engine.driving import (
    GREEDY,
    Row,
    chunk_of,
    drive,
    generate,
    pages_for,
    start_of,
    step,
)
from turing_engine.plan.grammar import Verdict
from turing_engine.plan.plan import Chunk, Plan, Result, Start
from turing_engine.run.masks import Masks, make_words
from turing_engine.run.native import NativeRunner
from turing_engine.run.runner import Runner, RunnerSpec
from turing_engine.run.torch_runner import TorchRunner
from turing_protocol.codec import unpack, unpack_floats
from turing_protocol.errors import TuringError
from turing_protocol.sampling import Sampling

SLOTS = 20
PAGES = 120


def torch_runner(pages: int, kv_bytes: int) -> Runner:
    """Build the torch runner on the tiny llama checkpoint."""
    folder, _ = checkpoint("llama")
    return TorchRunner(
        RunnerSpec(
            model=str(folder),
            pages=pages,
            kv_bytes=kv_bytes,
            max_running=SLOTS,
            max_step_tokens=2048,
            context=4096,
            threads=1,
        )
    )


def native_runner(pages: int, kv_bytes: int) -> Runner:
    """Build the native runner on the same checkpoint, in its default number format."""
    folder, _ = checkpoint("llama")
    return NativeRunner(
        RunnerSpec(
            model=str(folder),
            pages=pages,
            kv_bytes=kv_bytes,
            max_running=SLOTS,
            max_step_tokens=2048,
            context=4096,
            threads=2,
        )
    )


RUNNERS: dict[str, Callable[[int, int], Runner]] = {
    "torch": torch_runner,
    "native": native_runner,
}


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = RUNNERS[request.param](PAGES, 0)
    yield runner
    runner.close()


DRAWN = Sampling(temperature=1.0, seed=9, top_p=0.95, top_k=200)


def test_says_what_it_is(runner: Runner) -> None:
    assert runner.pages == PAGES
    assert runner.vocab_size == VOCAB
    assert runner.kv_bytes_per_token > 0


@pytest.mark.parametrize("name", RUNNERS)
def test_fits_the_pages_into_the_bytes_given(name: str) -> None:
    first = RUNNERS[name](1, 0)
    page = 64 * first.kv_bytes_per_token
    first.close()
    runner = RUNNERS[name](0, 5 * page + page // 2)
    assert runner.pages == 5
    runner.close()


def test_an_empty_plan_has_an_empty_result(runner: Runner) -> None:
    assert runner.run(Plan(77, [], [], [])) == Result(77, [])


@pytest.mark.parametrize("chunk", [1, 64, 100, 128, 256, 512])
def test_the_chunk_size_changes_nothing(runner: Runner, chunk: int) -> None:
    ids = prompt(150 if chunk == 1 else 1500)
    assert generate(runner, ids, 12, chunk=chunk) == generate(runner, ids, 12)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_alone_or_among_sixteen(runner: Runner, sampling: Sampling) -> None:
    lengths = [1, 2, 63, 64, 65, 130, 7, 300, 12, 90, 64, 128, 33, 5, 200, 31]
    prompts = [prompt(length, salt=at) for at, length in enumerate(lengths)]
    alone = [generate(runner, ids, 16, sampling) for ids in prompts]
    rows, first = [], 0
    for at, ids in enumerate(prompts):
        pages = pages_for(len(ids) + 16, first)
        first += len(pages)
        # some prefill in chunks while others decode already
        chunk = (1 << 20, 50, 9)[at % 3]
        rows.append(Row(slot=at, ids=ids, pages=pages, want=16, sampling=sampling, chunk=chunk))
    assert drive(runner, rows) == alone


def test_pages_may_lie_anywhere(runner: Runner) -> None:
    ids = prompt(400)
    expected = generate(runner, ids, 16)
    pages = list(range(PAGES))
    random.Random(3).shuffle(pages)
    assert drive(runner, [Row(slot=5, ids=ids, pages=pages[:8], want=16)]) == [expected]


def test_pages_of_a_shared_prefix_are_read_and_not_changed(runner: Runner) -> None:
    prefix = prompt(128)
    tails = [prompt(30, salt=1), prompt(45, salt=2)]
    expected = [generate(runner, prefix + tail, 16) for tail in tails]
    donor = Row(slot=0, ids=prefix + tails[0], pages=[10, 11, 12], want=16)
    assert drive(runner, [donor]) == [expected[0]]
    hits = [
        Row(slot=1 + at, ids=prefix + tail, pages=[10, 11, 20 + at], want=16, computed=128)
        for at, tail in enumerate(tails)
    ]
    assert drive(runner, hits) == expected


def test_a_preempted_sequence_goes_on_as_if_nothing_was(runner: Runner) -> None:
    sampling = Sampling(
        temperature=1.0,
        seed=-5,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.1,
    )
    ids = prompt(70)
    whole = generate(runner, ids, 24, sampling)
    assert len(set(whole)) > 6
    rest = Row(
        slot=3,
        ids=ids + whole[:10],
        output=whole[:10],
        pages=[40, 41, 42],
        want=14,
        sampling=sampling,
        chunk=33,
    )
    assert drive(runner, [rest]) == [whole]


def test_rows_keep_the_order_of_the_plan(runner: Runner) -> None:
    """Decodes and chunks mixed, some without sampling."""
    prompts = [prompt(10, salt=5), prompt(80, salt=6), prompt(20, salt=7)]
    expected = [generate(runner, ids, 2) for ids in prompts]
    rows = [
        Row(slot=at, ids=ids, pages=[2 * at, 2 * at + 1], want=2) for at, ids in enumerate(prompts)
    ]
    step(runner, rows[:1], [start_of(row) for row in rows])
    rows[1].chunk = 50
    plan = Plan(1, [chunk_of(rows[1]), chunk_of(rows[0]), chunk_of(rows[2])], [], [])
    result = runner.run(plan)
    assert [row.ids for row in result.rows] == [[], [expected[0][1]], [expected[2][0]]]
    runner.run(Plan(2, [], [], [0, 1, 2]))


def test_a_slot_forgets_what_it_served_before(runner: Runner) -> None:
    ids = prompt(20)
    plain = generate(runner, ids, 8)
    biased = Sampling(temperature=0, logit_bias=((7, 100.0),))
    assert generate(runner, ids, 8, biased) == [7] * 8
    assert generate(runner, ids, 8) == plain


def test_banned_ids_wait_for_min_tokens(runner: Runner) -> None:
    sampling = Sampling(
        temperature=0, min_tokens=5, max_tokens=8, logit_bias=((7, 100.0), (9, 50.0))
    )
    row = Row(slot=0, ids=prompt(20), pages=[0], want=8, sampling=sampling, banned=[7])
    assert drive(runner, [row]) == [[9, 9, 9, 9, 9, 7, 7, 7]]


def test_logprobs_come_with_the_rows_that_ask(runner: Runner) -> None:
    asking = Sampling(temperature=1.0, seed=4, logprobs=5)
    rows = [
        Row(slot=0, ids=prompt(20), pages=[0], want=6, sampling=asking),
        Row(slot=1, ids=prompt(20), pages=[1], want=6),
    ]
    drive(runner, rows)
    assert not any(sampled.logprobs for sampled in rows[1].sampled)
    for sampled in rows[0].sampled:
        (entry,) = sampled.logprobs
        ids, values = unpack(entry.top_ids), unpack_floats(entry.top)
        assert len(set(ids)) == len(values) == 5
        assert all(first >= second for first, second in pairwise(values))
        assert -9999.0 <= entry.logprob <= values[0] <= 0.0
        if sampled.ids[0] in ids:
            assert entry.logprob == pytest.approx(values[ids.index(sampled.ids[0])])


def test_logprobs_do_not_depend_on_company(runner: Runner) -> None:
    sampling = Sampling(temperature=0, logprobs=3)
    ids = prompt(90)
    alone = Row(slot=0, ids=list(ids), pages=[0, 1], want=8, sampling=sampling)
    drive(runner, [alone])
    among = Row(slot=4, ids=list(ids), pages=[30, 31], want=8, sampling=sampling, chunk=32)
    others = [
        Row(slot=5 + at, ids=prompt(40, salt=at), pages=[40 + at], want=20) for at in range(6)
    ]
    drive(runner, [*others[:3], among, *others[3:]])
    for first, second in zip(alone.sampled, among.sampled, strict=True):
        assert first.ids == second.ids
        assert first.logprobs[0].logprob == pytest.approx(second.logprobs[0].logprob, abs=1e-4)


class Only:
    """A grammar that allows some ids and never ends."""

    error, warnings = "", ()

    def __init__(self, *ids: int) -> None:
        self._ids = ids

    def mask(self, words: memoryview, left: int) -> None:
        row = np.frombuffer(words, np.uint32)
        row[:] = 0
        for token in self._ids:
            row[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token: int, left: int) -> Verdict:
        return Verdict.GO


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        DRAWN,
        Sampling(temperature=1.5, seed=2, top_k=3, min_p=0.1, repetition_penalty=1.5),
        Sampling(temperature=0, logit_bias=((5, 100.0),), min_tokens=4),
    ],
)
def test_masked_rows_take_none_but_legal_ids(runner: Runner, sampling: Sampling) -> None:
    words, legal = make_words(SLOTS, VOCAB), (0, 31, 32, 70, VOCAB - 1)
    asking = msgspec.structs.replace(sampling, logprobs=2)
    rows = [
        Row(slot=at, ids=prompt(30 + at), pages=[at], want=9, sampling=asking) for at in range(4)
    ]
    free = Row(slot=4, ids=prompt(50), pages=[4], want=9)
    expected = generate(runner, prompt(50), 9)
    starts = [start_of(row) for row in (*rows, free)]
    for _ in range(9):
        order = [free, *rows]
        plan = Plan(1, [chunk_of(row) for row in order], starts, [])
        grammars = [(1 + at, Only(*legal[: at + 1]), 1) for at in range(4)]
        result = runner.run(plan, Masks(words, grammars))
        for row, chunk, sampled in zip(order, plan.chunks, result.rows, strict=True):
            row.computed += len(chunk.ids)
            row.ids += sampled.ids
            row.output += sampled.ids
            row.sampled.append(sampled)
        starts = []
    runner.run(Plan(2, [], [], list(range(5))))
    for at, row in enumerate(rows):
        assert set(row.output) <= set(legal[: at + 1])
    assert free.output == expected


def test_masks_do_not_touch_logprobs(runner: Runner) -> None:
    asking = Sampling(temperature=0, logprobs=3)
    plain = Row(slot=0, ids=prompt(30), pages=[0], want=1, sampling=asking)
    drive(runner, [plain])
    row = Row(slot=0, ids=prompt(30), pages=[0], want=1, sampling=asking)
    masks = Masks(make_words(SLOTS, VOCAB), [(0, Only(9), 1)])
    (sampled,) = runner.run(Plan(1, [chunk_of(row)], [start_of(row)], []), masks).rows
    runner.run(Plan(2, [], [], [0]))
    assert sampled.ids == [9]
    assert sampled.logprobs[0].top_ids == plain.sampled[0].logprobs[0].top_ids
    assert sampled.logprobs[0].top == plain.sampled[0].logprobs[0].top
    assert -9999.0 <= sampled.logprobs[0].logprob <= plain.sampled[0].logprobs[0].logprob


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(1, 0, [VOCAB], [5], True),
        Chunk(1, 0, [-1], [5], True),
        Chunk(1, 0, [4], [PAGES], True),
        Chunk(1, 64, [4], [5], True),
        Chunk(SLOTS, 0, [4], [5], True),
    ],
)
def test_a_plan_that_cannot_be_run_fails_and_harms_no_one(runner: Runner, chunk: Chunk) -> None:
    ids = prompt(70)
    expected = generate(runner, ids, 6)
    row = Row(slot=0, ids=list(ids), pages=[0, 1], want=6)
    step(runner, [row], [start_of(row)])
    with pytest.raises((ValueError, TuringError)):
        runner.run(Plan(1, [chunk], [Start(1, GREEDY, [4], [], [])], []))
    while row.open:
        step(runner, [row])
    assert row.output == expected
    runner.run(Plan(2, [], [], [0, 1]))
