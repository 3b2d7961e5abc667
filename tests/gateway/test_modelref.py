"""Names with a provider or an effort."""

import pytest

from turing_gateway.modelref import EFFORTS, ModelRef, parse_model_ref


@pytest.mark.parametrize(
    ("text", "name", "effort"),
    [
        ("org/name", "org/name", ""),
        ("name", "name", ""),
        ("org/name/high", "org/name", "high"),
        ("name:low", "name", "low"),
        ("org/name:none", "org/name", "none"),
        ("hf/org/name", "org/name", ""),
        ("huggingface/org/name/xhigh", "org/name", "xhigh"),
        ("local/name", "name", ""),
        ("local", "local", ""),
        ("high", "high", ""),
        ("/high", "/high", ""),
        ("name:7b", "name:7b", ""),
        ("/models/high.gguf", "/models/high.gguf", ""),
        ("", "", ""),
    ],
)
def test_provider_and_effort_are_split_off(text: str, name: str, effort: str) -> None:
    assert parse_model_ref(text) == ModelRef(name, effort)


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_is_known_with_both_separators(effort: str) -> None:
    assert parse_model_ref(f"m/{effort}") == parse_model_ref(f"m:{effort}") == ModelRef("m", effort)
