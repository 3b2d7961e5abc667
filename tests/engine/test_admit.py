"""What the engine accepts, what it refuses, and which field it blames."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rig import EPOCH, GATEWAY, make_submit
from turing_engine.admit import Gatekeeper, effective
from turing_engine.run.scripted import EOS, VOCAB_SIZE, scripted_info
from turing_protocol.codec import pack
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Limits, Reason, Submit
from turing_protocol.prefix import salt
from turing_protocol.sampling import Constraint, Knobs, Sampling

LIMITS = Limits(context=64, pages_total=1, max_running=1, max_waiting=1)
INFO = scripted_info("scripted:")
GATE = Gatekeeper(INFO, LIMITS, VOCAB_SIZE)
RICH = Limits(
    context=64,
    pages_total=1,
    max_running=1,
    max_waiting=1,
    sparsity_levels=(0.25, 0.5),
    kv_formats=("plain", "int8"),
    default_kv="int8",
    default_sparsity=0.25,
    max_draft_tokens=4,
)


def changed(**fields: object) -> Submit:
    """Return a good request with some fields replaced."""
    return msgspec.structs.replace(make_submit(), **fields)


def test_a_good_request_becomes_a_sequence() -> None:
    submit = changed(
        prior=pack([1, 2]), lane=Lane.BATCH, deadline_ms=1500, salt="tenant", knobs=Knobs(svd_kv=0)
    )
    sequence = GATE.sequence(GATEWAY, submit, 10.0)
    assert sequence.owner == (GATEWAY, 1)
    assert sequence.tokens == [*b"hello", 1, 2]
    assert (sequence.prompt_len, sequence.output_len, sequence.limit) == (5, 2, 13)
    assert sequence.stop_ids == {EOS}
    assert (sequence.arrival, sequence.deadline) == (10.0, 11.5)
    assert (sequence.lane, sequence.tenant, sequence.finish) == (Lane.BATCH, "tenant", None)
    assert sequence.root == salt(model=INFO.digest, tenant="tenant")
    assert sequence.knobs == Knobs(sparsity=0.0, svd_kv=0, draft_tokens=0)


def test_stop_ids_are_the_models_and_the_clients() -> None:
    sampling = Sampling(stop_ids=(5,))
    assert GATE.sequence(GATEWAY, changed(sampling=sampling), 0.0).stop_ids == {5, EOS}
    ignoring = Sampling(stop_ids=(5,), ignore_eos=True)
    assert GATE.sequence(GATEWAY, changed(sampling=ignoring), 0.0).stop_ids == {5}


def test_a_prior_that_ends_in_a_stop_is_finished() -> None:
    sequence = GATE.sequence(GATEWAY, changed(prior=pack([7, EOS])), 0.0)
    assert sequence.finish is Reason.STOP


@pytest.mark.parametrize(
    ("submit", "code", "param"),
    [
        (changed(prompt=b""), Code.INVALID, "prompt"),
        (changed(prompt=b"abc"), Code.INVALID, "prompt"),
        (changed(prompt=pack([VOCAB_SIZE])), Code.INVALID, "prompt"),
        (changed(prompt=pack([3, -1])), Code.INVALID, "prompt"),
        (changed(prior=pack([VOCAB_SIZE])), Code.INVALID, "prior"),
        (changed(prior=pack([1] * 9)), Code.INVALID, "prior"),
        (changed(sampling=Sampling(top_p=2.0)), Code.INVALID, "top_p"),
        (changed(sampling=Sampling(stop_ids=(VOCAB_SIZE,))), Code.INVALID, "stop_token_ids"),
        (changed(sampling=Sampling(max_tokens=60)), Code.CONTEXT_TOO_LONG, "prompt"),
        (changed(prompt=pack([1] * 65)), Code.CONTEXT_TOO_LONG, "prompt"),
        (changed(adapter="sql"), Code.MODEL_NOT_FOUND, "model"),
        (changed(constraint=Constraint("regex", "a")), Code.UNSUPPORTED, "response_format"),
        (changed(deadline_ms=-1), Code.INVALID, "deadline_ms"),
        (changed(knobs=Knobs(sparsity=0.5)), Code.UNSUPPORTED, "X-Turing-Sparsity"),
        (changed(knobs=Knobs(sparsity=0.8)), Code.INVALID, "X-Turing-Sparsity"),
        (changed(knobs=Knobs(sparsity=float("nan"))), Code.INVALID, "X-Turing-Sparsity"),
        (changed(knobs=Knobs(svd_kv=1)), Code.UNSUPPORTED, "X-Turing-SVD-KV"),
        (changed(knobs=Knobs(svd_kv=2)), Code.INVALID, "X-Turing-SVD-KV"),
        (changed(knobs=Knobs(draft_tokens=4)), Code.UNSUPPORTED, "X-Turing-Draft-Tokens"),
        (changed(knobs=Knobs(draft_tokens=-1)), Code.INVALID, "X-Turing-Draft-Tokens"),
    ],
)
def test_what_is_wrong_is_named(submit: Submit, code: Code, param: str) -> None:
    with pytest.raises(TuringError) as caught:
        GATE.sequence(GATEWAY, submit, 0.0)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_the_whole_context_can_be_used() -> None:
    submit = changed(prompt=pack([1] * 60), sampling=Sampling(max_tokens=4))
    assert GATE.sequence(GATEWAY, submit, 0.0).limit == 64


def test_controls_left_out_get_the_engines_defaults() -> None:
    assert effective(Knobs(), LIMITS) == Knobs(0.0, 0, 0)
    assert effective(Knobs(), RICH) == Knobs(0.25, 1, 4)


@pytest.mark.parametrize(
    ("wanted", "level"), [(0.0, 0.0), (0.2, 0.0), (0.25, 0.25), (0.4, 0.25), (0.75, 0.5)]
)
def test_sparsity_is_rounded_down_to_a_level(wanted: float, level: float) -> None:
    assert effective(Knobs(sparsity=wanted), RICH).sparsity == level


def test_pages_are_shared_only_by_requests_whose_values_agree() -> None:
    gate = Gatekeeper(INFO, RICH, VOCAB_SIZE)
    requests = [
        changed(salt=tenant, knobs=Knobs(sparsity=sparsity, svd_kv=svd_kv))
        for tenant in ("", "a")
        for sparsity in (0.0, 0.5)
        for svd_kv in (0, 1)
    ]
    roots = [gate.sequence(GATEWAY, request, 0.0).root for request in requests]
    assert len(set(roots)) == len(requests)


@given(
    prompt=st.binary(max_size=40),
    prior=st.binary(max_size=12),
    sampling=st.builds(
        Sampling,
        max_tokens=st.integers(-2, 80),
        min_tokens=st.integers(-2, 80),
        temperature=st.floats(),
        top_k=st.integers(),
        seed=st.integers(),
        stop_ids=st.tuples(st.integers(-5, 300)),
        logit_bias=st.tuples(st.tuples(st.integers(-5, 300), st.floats())),
    ),
    knobs=st.builds(Knobs, st.none() | st.floats(), st.none() | st.integers(), st.none()),
    deadline_ms=st.integers(-(2**63), 2**63 - 1),
)
def test_any_request_is_admitted_or_refused(
    prompt: bytes, prior: bytes, sampling: Sampling, knobs: Knobs, deadline_ms: int
) -> None:
    submit = Submit(1, EPOCH, prompt, sampling, knobs=knobs, prior=prior, deadline_ms=deadline_ms)
    try:
        sequence = GATE.sequence(GATEWAY, submit, 0.0)
    except TuringError:
        return
    assert 0 < len(sequence.tokens) <= sequence.limit <= LIMITS.context
    assert all(0 <= token < VOCAB_SIZE for token in sequence.tokens)
