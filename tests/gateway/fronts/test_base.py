"""Finding the model that a request means, and the controls that it sets."""

from typing import Any

import msgspec
import pytest

from fakes.generator import FakeGenerator, Gateway, make_view
from fakes.wire import LIMITS, MODEL
from turing_gateway.fronts.base import context_of, resolve_model
from turing_gateway.modelref import ModelRef
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.sampling import Knobs

OTHER = msgspec.structs.replace(MODEL, name="org/high", aliases=("small",))


def test_the_only_model_needs_no_name() -> None:
    assert resolve_model(FakeGenerator(), None) == (MODEL, ModelRef("fake"))


def test_a_name_is_needed_among_several() -> None:
    with pytest.raises(TuringError, match="fake, org/high") as caught:
        resolve_model(FakeGenerator(models=[MODEL, OTHER]), None)
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "model")


def test_without_a_model_there_is_no_engine() -> None:
    with pytest.raises(TuringError) as caught:
        resolve_model(FakeGenerator(models=[]), None)
    assert caught.value.code is Code.NO_ENGINE


def test_a_served_name_is_not_taken_apart() -> None:
    generator = FakeGenerator(models=[MODEL, OTHER])
    assert resolve_model(generator, "org/high") == (OTHER, ModelRef("org/high"))
    assert resolve_model(generator, "small:low") == (OTHER, ModelRef("small", "low"))


def test_an_unknown_name_stays_unknown_with_and_without_an_effort() -> None:
    for name in ("none-such", "none-such:high"):
        with pytest.raises(TuringError) as caught:
            resolve_model(FakeGenerator(), name)
        assert caught.value.code is Code.MODEL_NOT_FOUND


def test_the_context_is_the_longest_of_the_engines_with_the_model() -> None:
    longer = msgspec.structs.replace(LIMITS, context=5000)
    views = [make_view(), make_view(limits=longer), make_view(info=OTHER, limits=longer)]
    assert context_of(lambda: views, MODEL) == 5000
    assert context_of(lambda: views[:1], MODEL) == LIMITS.context
    assert context_of(lambda: [make_view(info=None, limits=None)], MODEL) == MODEL.context


MESSAGES = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"model": "fake", "prompt": "hi"},
    "/v1/responses": {"model": "fake", "input": "hi"},
    "/v1/messages": MESSAGES,
    "/api/chat": MESSAGES,
    "/api/generate": {"model": "fake", "prompt": "hi"},
}


@pytest.mark.parametrize("path", GENERATING)
def test_every_api_takes_controls_from_the_body(path: str) -> None:
    gateway = Gateway()
    wanted = {"lane": "batch", "sparsity": 0.5, "svd_kv": 0, "draft_tokens": 0, "tenant_id": "sql"}
    response = gateway.post(path, GENERATING[path] | {"turing": wanted}, x_turing_lane="background")
    assert response.status_code == 200
    call = gateway.call()
    assert (call.lane, call.adapter) == (Lane.BATCH, "sql")
    assert call.knobs == Knobs(sparsity=0.5, svd_kv=0, draft_tokens=0)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lane", "express"),
        ("sparsity", 0.76),
        ("sparsity", "0.5"),
        ("svd_kv", 2),
        ("draft_tokens", 65),
        ("draft_tokens", 1.5),
        ("tenant_id", "../../etc"),
        ("tenant_id", ""),
        ("tenant_id", "a\n"),
        ("strict", 1),
        ("lanes", "batch"),
    ],
)
def test_a_malformed_control_is_named(path: str, field: str, value: object) -> None:
    gateway = Gateway()
    response = gateway.post(path, GENERATING[path] | {"turing": {field: value}})
    assert response.status_code == 400
    assert ("turing" if field == "lanes" else f"turing.{field}") in response.text
    assert gateway.generator.calls == []
