"""Model names with a provider in front or a reasoning effort behind."""

import msgspec

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
PROVIDERS = ("huggingface", "hf", "local")


class ModelRef(msgspec.Struct, frozen=True):
    """A model name without decoration, and the effort that was part of it (empty if none)."""

    name: str
    effort: str = ""


def parse_model_ref(text: str) -> ModelRef:
    """Split ``provider/org/name[/effort]`` or ``name[:effort]`` into name and effort.

    The provider word only says where weights come from, which is settled once a model is served.
    """
    name, effort = _split_effort(text)
    provider, _, rest = name.partition("/")
    if rest and provider in PROVIDERS:
        name = rest
    return ModelRef(name, effort)


def _split_effort(text: str) -> tuple[str, str]:
    for separator in ("/", ":"):
        name, _, word = text.rpartition(separator)
        if name and word in EFFORTS:
            return name, word
    return text, ""
