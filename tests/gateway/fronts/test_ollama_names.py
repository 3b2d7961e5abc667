"""Names as Ollama's clients write them."""

import pytest
from msgspec.structs import replace

from fakes.generator import FakeGenerator
from fakes.wire import MODEL
from turing_gateway.fronts.ollama_names import find_model, tagged
from turing_protocol.errors import Code, TuringError

MODELS = [
    replace(MODEL, name="SmolLM2", aliases=("Hub/Smol-LM2",)),
    replace(MODEL, name="qwen3:0.6b"),
]


@pytest.mark.parametrize(
    ("asked", "name", "effort"),
    [
        ("SmolLM2", "SmolLM2", ""),
        ("smollm2", "SmolLM2", ""),
        ("SMOLLM2:latest", "SmolLM2", ""),
        ("smollm2:LATEST", "SmolLM2", ""),
        ("hub/smol-lm2", "Hub/Smol-LM2", ""),
        ("hub/smol-lm2:latest", "Hub/Smol-LM2", ""),
        ("hf/hub/smol-lm2", "Hub/Smol-LM2", ""),
        ("smollm2:high", "SmolLM2", "high"),
        ("smollm2/low", "SmolLM2", "low"),
        ("QWEN3:0.6B", "qwen3:0.6b", ""),
    ],
)
def test_names_that_are_served(asked: str, name: str, effort: str) -> None:
    info, ref = find_model(FakeGenerator(models=MODELS), asked)
    assert name in (info.name, *info.aliases)
    assert (ref.name, ref.effort) == (name, effort)


@pytest.mark.parametrize("asked", ["qwen3", "smollm2:135m", "x/smollm2", "smollm2:latest:latest"])
def test_names_that_are_not(asked: str) -> None:
    with pytest.raises(TuringError) as caught:
        find_model(FakeGenerator(models=MODELS), asked)
    assert caught.value.code is Code.MODEL_NOT_FOUND
    assert caught.value.message == (
        f"model '{asked}' not found; served: SmolLM2, Hub/Smol-LM2, qwen3:0.6b"
    )


def test_a_name_is_required() -> None:
    with pytest.raises(TuringError) as caught:
        find_model(FakeGenerator(models=MODELS[:1]), "")
    assert (caught.value.code, caught.value.message) == (Code.INVALID, "model is required")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("a", "a:latest"),
        ("o/a", "o/a:latest"),
        ("a:7b", "a:7b"),
        ("host:80/a", "host:80/a:latest"),
    ],
)
def test_listed_names_have_a_tag(name: str, full: str) -> None:
    assert tagged(name) == full
