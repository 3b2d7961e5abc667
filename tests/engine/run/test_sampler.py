"""What each slot asked for is applied to its own row, in the fixed order."""

import math
from collections.abc import Sequence

import pytest
import torch

from turing_engine.plan.plan import Sampled, Start
from turing_engine.run.draw import uniform
from turing_engine.run.sampler import LOGPROB_FLOOR, Sampler
from turing_protocol.codec import unpack, unpack_floats
from turing_protocol.sampling import Sampling

CPU = torch.device("cpu")
GREEDY = Sampling(temperature=0.0)
LOGITS = [0.5, 2.0, 1.5, -1.0, 2.0, 0.0]


def make(*starts: Start, vocab_size: int = len(LOGITS)) -> Sampler:
    sampler = Sampler(8, vocab_size, CPU)
    for start in starts:
        sampler.start(start)
    return sampler


def start(
    sampling: Sampling,
    *,
    slot: int = 0,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
) -> Start:
    return Start(slot, sampling, list(prompt), list(output), list(banned))


def one(sampler: Sampler, logits: Sequence[float] = LOGITS, position: int = 1) -> int:
    return sampler.sample(torch.tensor([logits]), [0], [position])[0].ids[0]


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    for sampling in (GREEDY, Sampling(top_k=1), Sampling(top_p=0.0)):
        assert one(make(start(sampling))) == 1


def test_logit_bias_adds_up() -> None:
    assert one(make(start(Sampling(temperature=0, logit_bias=((3, 3.5),))))) == 3
    twice = Sampling(temperature=0, logit_bias=((3, 1.75), (3, 1.75)))
    assert one(make(start(twice))) == 3


def test_repetition_penalty_divides_positive_and_multiplies_negative() -> None:
    sampling = Sampling(temperature=0, repetition_penalty=2.0)
    assert one(make(start(sampling, prompt=[1]))) == 4
    assert one(make(start(sampling, prompt=[1], output=[4]))) == 2
    assert one(make(start(sampling, prompt=[0])), [-1.0, -1.5]) == 1


def test_frequency_and_presence_count_outputs_only() -> None:
    frequency = Sampling(temperature=0, frequency_penalty=0.2)
    assert one(make(start(frequency, prompt=[1, 1, 1]))) == 1
    assert one(make(start(frequency, output=[1, 4]))) == 1
    assert one(make(start(frequency, output=[1, 1, 4]))) == 4
    assert one(make(start(frequency, output=[1, 4, 1, 4, 1, 4, 4]))) == 2
    presence = Sampling(temperature=0, presence_penalty=0.6)
    assert one(make(start(presence, prompt=[1]))) == 1
    assert one(make(start(presence, output=[1, 4, 4]))) == 2


def test_bias_comes_before_the_penalty() -> None:
    """-1 + 5 = 4, halved to 2, loses to 2.0 at a lower id; penalised first it would be -2 + 5."""
    sampling = Sampling(temperature=0, logit_bias=((3, 5.0),), repetition_penalty=2.0)
    assert one(make(start(sampling, prompt=[3]))) == 1


def test_sampled_tokens_are_counted() -> None:
    sampler = make(start(Sampling(temperature=0, presence_penalty=0.6)))
    assert [one(sampler, position=at) for at in range(1, 6)] == [1, 4, 2, 1, 1]


def test_many_distinct_outputs_are_counted() -> None:
    """Each token is taken once, whatever the tables' first size was."""
    sampler = make(start(Sampling(temperature=0, presence_penalty=2.0)), vocab_size=300)
    tokens = [one(sampler, [0.0] * 300, at) for at in range(1, 301)]
    assert tokens == list(range(300))


def test_banned_until_enough_outputs() -> None:
    sampling = Sampling(temperature=0, min_tokens=3, max_tokens=9)
    sampler = make(start(sampling, banned=[1, 4]))
    assert [one(sampler, position=at) for at in range(1, 6)] == [2, 2, 2, 1, 1]
    resumed = make(start(sampling, banned=[1, 4], output=[2, 2]))
    assert [one(resumed, position=at) for at in range(3, 5)] == [2, 1]


def test_a_start_forgets_the_slot_before() -> None:
    sampler = make(start(Sampling(temperature=0, presence_penalty=0.6), output=[1]))
    assert one(sampler) == 4
    sampler.start(start(GREEDY))
    assert one(sampler) == 1
    sampler.stop(0)
    with pytest.raises(ValueError, match="slot 0 was not started"):
        one(sampler)


MIXED = [
    Sampling(temperature=0.9, seed=3),
    Sampling(temperature=0.7, seed=4, top_k=3),
    GREEDY,
    Sampling(temperature=1.3, seed=5, top_p=0.6),
    Sampling(temperature=1.0, seed=6, min_p=0.2, frequency_penalty=0.5),
    Sampling(temperature=1.0, seed=7, top_k=-1, logit_bias=((5, 2.0),)),
    Sampling(temperature=2.0, seed=-1, top_k=4, top_p=0.8, min_p=0.01, repetition_penalty=1.3),
]


def test_rows_do_not_depend_on_their_neighbours() -> None:
    torch.manual_seed(0)
    together = make(*(start(sampling, slot=at) for at, sampling in enumerate(MIXED)))
    alone = [make(start(sampling)) for sampling in MIXED]
    for position in range(1, 60):
        logits = torch.randn(len(MIXED), len(LOGITS)) * 2
        positions = [position + 10 * at for at in range(len(MIXED))]
        rows = together.sample(logits.clone(), range(len(MIXED)), positions)
        for at, sampler in enumerate(alone):
            solo = sampler.sample(logits[at : at + 1].clone(), [0], [positions[at]])
            assert rows[at].ids == solo[0].ids


def test_the_draw_is_keyed_by_seed_and_position() -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    tokens = [one(make(start(sampling)), [0.0] * 6, at) for at in range(50)]
    assert tokens == [int(uniform(11, at) * 6) for at in range(50)]


def probabilities(logits: Sequence[float]) -> list[float]:
    total = sum(math.exp(value) for value in logits)
    return [value - math.log(total) for value in logits]


def entry(sampled: Sampled) -> tuple[float, list[int], list[float]]:
    (logprobs,) = sampled.logprobs
    return logprobs.logprob, unpack(logprobs.top_ids), unpack_floats(logprobs.top)


def test_logprobs_are_those_of_the_untouched_logits() -> None:
    sampling = Sampling(temperature=0, logprobs=3, logit_bias=((3, 9.0),), repetition_penalty=2.0)
    sampled = make(start(sampling, prompt=[3, 1])).sample(torch.tensor([LOGITS]), [0], [1])[0]
    logprob, ids, values = entry(sampled)
    expected = probabilities(LOGITS)
    assert sampled.ids == [3]
    assert logprob == pytest.approx(expected[3], abs=1e-6)
    assert ids == [1, 4, 2]
    assert values == pytest.approx([expected[at] for at in ids], abs=1e-6)


def test_only_rows_that_ask_get_logprobs() -> None:
    wants = [-1, 0, 2]
    starts = [start(Sampling(temperature=0, logprobs=n), slot=at) for at, n in enumerate(wants)]
    rows = make(*starts).sample(torch.tensor([LOGITS] * 3), [0, 1, 2], [1, 1, 1])
    assert [len(row.logprobs) for row in rows] == [0, 1, 1]
    assert entry(rows[1])[1:] == ([], [])
    assert entry(rows[2])[1] == [1, 4]


def test_impossible_tokens_have_a_finite_logprob() -> None:
    logits = [0.0, -math.inf, -math.inf, 1.0]
    sampling = Sampling(temperature=0, logprobs=4)
    sampler = make(start(sampling), vocab_size=4)
    _, ids, values = entry(sampler.sample(torch.tensor([logits]), [0], [1])[0])
    assert ids == [3, 0, 1, 2]
    assert values[2:] == [LOGPROB_FLOOR, LOGPROB_FLOOR]


def test_logits_that_are_not_numbers_are_an_error() -> None:
    for sampling in (GREEDY, Sampling(temperature=1.0)):
        with pytest.raises(FloatingPointError):
            one(make(start(sampling)), [0.0, math.nan, 1.0, 0.0, 0.0, 0.0])
