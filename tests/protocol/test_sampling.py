"""Limits of sampling: inside them everything passes, outside the field is named."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, Sampling, check

VOCAB = 100
IDS = st.integers(0, VOCAB - 1)

VALID = st.builds(
    Sampling,
    max_tokens=st.integers(10, 10**9),
    min_tokens=st.integers(0, 10),
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, 2**31 - 1),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 10, exclude_min=True),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    seed=st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.lists(st.tuples(IDS, st.floats(-100, 100)), max_size=5).map(tuple),
    stop_ids=st.lists(IDS, max_size=5).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.integers(-1, MAX_LOGPROBS),
)

BELOW = [
    ("max_tokens", -1),
    ("min_tokens", -1),
    ("temperature", -0.001),
    ("top_k", -2),
    ("top_p", -0.001),
    ("min_p", -0.001),
    ("repetition_penalty", 0.0),
    ("frequency_penalty", -2.001),
    ("presence_penalty", -2.001),
    ("seed", -(2**63) - 1),
    ("logprobs", -2),
]
ABOVE = [
    ("temperature", 2.001),
    ("top_k", 2**31),
    ("top_p", 1.001),
    ("min_p", 1.001),
    ("repetition_penalty", 10.001),
    ("frequency_penalty", 2.001),
    ("presence_penalty", 2.001),
    ("seed", 2**63),
    ("logprobs", MAX_LOGPROBS + 1),
]
REALS = [
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
]


def refusal(sampling: Sampling) -> TuringError:
    with pytest.raises(TuringError) as caught:
        check(sampling, VOCAB)
    assert caught.value.code is Code.INVALID
    return caught.value


@given(VALID)
def test_everything_within_the_limits_passes(sampling: Sampling) -> None:
    check(sampling, VOCAB)


@pytest.mark.parametrize(("field", "value"), BELOW + ABOVE)
def test_a_value_just_outside_is_refused_by_name(field: str, value: float) -> None:
    error = refusal(msgspec.structs.replace(Sampling(), **{field: value}))
    assert error.param == field
    assert field in error.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", REALS)
def test_a_number_that_is_none_is_refused_by_name(field: str, value: float) -> None:
    assert refusal(msgspec.structs.replace(Sampling(), **{field: value})).param == field


def test_more_minimum_than_maximum_is_refused() -> None:
    assert refusal(Sampling(max_tokens=3, min_tokens=4)).param == "min_tokens"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(logit_bias=((VOCAB, 1.0),)), "logit_bias"),
        (Sampling(logit_bias=((-1, 1.0),)), "logit_bias"),
        (Sampling(logit_bias=((1, 100.5),)), "logit_bias"),
        (Sampling(logit_bias=((1, math.nan),)), "logit_bias"),
        (Sampling(logit_bias=((1, 0.0),) * (MAX_BIAS + 1)), "logit_bias"),
        (Sampling(stop_ids=(VOCAB,)), "stop_token_ids"),
        (Sampling(stop_ids=(-1,)), "stop_token_ids"),
        (Sampling(stop_ids=(1,) * (MAX_STOP_IDS + 1)), "stop_token_ids"),
    ],
)
def test_token_ids_are_checked_against_the_vocabulary(sampling: Sampling, param: str) -> None:
    assert refusal(sampling).param == param


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        (Sampling(temperature=0.0), True),
        (Sampling(temperature=9e-6), True),
        (Sampling(temperature=1e-5), False),
        (Sampling(top_k=1), True),
        (Sampling(top_p=0.0), True),
        (Sampling(), False),
    ],
)
def test_what_counts_as_greedy(sampling: Sampling, greedy: bool) -> None:
    assert sampling.greedy is greedy
