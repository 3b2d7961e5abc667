"""What a call may ask."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.wire import LIMITS
from turing_gateway.call import Call, Message
from turing_gateway.checks import capacity, output_limit, unsupported
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint, Knobs


@pytest.mark.parametrize(
    ("prompt", "asked", "resolved"),
    [(1, None, 99), (99, None, 1), (40, 60, 60), (100, 0, 0), (1, 1, 1)],
)
def test_max_tokens_is_as_asked_or_what_is_left(
    prompt: int, asked: int | None, resolved: int
) -> None:
    assert output_limit(Call(model="", prompt="x", max_tokens=asked), [0] * prompt, 100) == resolved


@pytest.mark.parametrize(("prompt", "asked"), [(40, 61), (100, None), (101, 0), (100, 1)])
def test_what_does_not_fit_the_context_is_refused(prompt: int, asked: int | None) -> None:
    for call, field in [
        (Call(model="", prompt="x", max_tokens=asked), "prompt"),
        (Call(model="", messages=(Message(role="user"),), max_tokens=asked), "messages"),
    ]:
        with pytest.raises(TuringError, match="maximum context length is 100 tokens") as caught:
            output_limit(call, [0] * prompt, 100)
        assert (caught.value.code, caught.value.param) == (Code.CONTEXT_TOO_LONG, field)


@pytest.mark.parametrize(
    ("prompt", "asked", "resolved"),
    [(40, 61, 60), (40, None, 60), (40, 9, 9), (99, 5, 1), (100, 0, 0), (1, 0, 0)],
)
def test_max_tokens_is_cut_where_a_call_says_so(
    prompt: int, asked: int | None, resolved: int
) -> None:
    call = Call(model="", prompt="x", max_tokens=asked, clamp=True)
    assert output_limit(call, [0] * prompt, 100) == resolved


@pytest.mark.parametrize(
    ("prompt", "asked", "most"), [(100, 1, 99), (100, None, 99), (150, 32000, 99), (101, 0, 100)]
)
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(
    prompt: int, asked: int | None, most: int
) -> None:
    words = f"^prompt is too long: {prompt} tokens > {most} maximum$"
    call = Call(model="", messages=(Message(role="user"),), max_tokens=asked, clamp=True)
    for clamped, field in [
        (call, "messages"),
        (replace(call, messages=(), prompt="x"), "prompt"),
    ]:
        with pytest.raises(TuringError, match=words) as caught:
            output_limit(clamped, [0] * prompt, 100)
        assert (caught.value.code, caught.value.param) == (Code.CONTEXT_TOO_LONG, field)


@pytest.mark.parametrize(
    ("context", "clamp", "room"),
    [
        (None, False, 4096),
        (100, False, 100),
        (9999, False, 4096),
        (None, True, 640),
        (100, True, 100),
    ],
)
def test_a_call_may_use_less_context_than_there_is(
    context: int | None, clamp: bool, room: int
) -> None:
    call = Call(model="", prompt="x", context=context, clamp=clamp)
    assert capacity(call, replace(LIMITS, pages_total=10)) == room


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"knobs": Knobs(sparsity=0.25)}, "X-Turing-Sparsity"),
        ({"knobs": Knobs(svd_kv=1)}, "X-Turing-SVD-KV"),
        ({"knobs": Knobs(draft_tokens=1)}, "X-Turing-Draft-Tokens"),
        ({"format": Constraint("json_object")}, "response_format"),
        ({"format": Constraint("json_object"), "format_field": "format"}, "format"),
    ],
)
def test_a_control_that_is_not_loaded_is_named(fields: dict[str, Any], param: str) -> None:
    call = Call(model="", prompt="x", **fields)
    refusal = unsupported(call, LIMITS)
    assert refusal is not None
    assert (refusal.code, refusal.param) == (Code.UNSUPPORTED, param)
    rich = replace(
        LIMITS,
        sparsity_levels=(0.25,),
        kv_formats=("plain", "int8"),
        max_draft_tokens=4,
        constraints=("json_object",),
    )
    assert unsupported(call, rich) is None


def test_what_is_off_needs_nothing() -> None:
    off = Knobs(sparsity=0.0, svd_kv=0, draft_tokens=0)
    assert unsupported(Call(model="", prompt="x", knobs=off), LIMITS) is None
    assert unsupported(Call(model="", prompt="x"), LIMITS) is None
    int8 = replace(LIMITS, kv_formats=("int8",))
    refusal = unsupported(Call(model="", prompt="x", knobs=off), int8)
    assert refusal is not None
    assert refusal.param == "X-Turing-SVD-KV"
