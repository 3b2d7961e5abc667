"""Model names as Ollama reads them: any case, and ``name`` is ``name:latest``."""

from turing_gateway.fronts.base import Generator, resolve_model
from turing_gateway.modelref import ModelRef, parse_model_ref
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo

LATEST = ":latest"


def find_model(generator: Generator, asked: str) -> tuple[ModelInfo, ModelRef]:
    """Return the served model called ``asked``, and the name and effort that it is served by.

    An unknown name is ``Code.MODEL_NOT_FOUND`` in Ollama's words, with what is served.
    """
    if not asked:
        raise TuringError(Code.INVALID, "model is required", param="model")
    spelled = {name.casefold(): name for name in served_names(generator)}
    plain = asked[: -len(LATEST)] if asked.casefold().endswith(LATEST) else asked
    for name in (asked, plain):
        if name.casefold() in spelled:
            return resolve_model(generator, spelled[name.casefold()])
    ref = parse_model_ref(plain)
    if ref.name.casefold() in spelled:
        name = spelled[ref.name.casefold()]
        return generator.find(name), ModelRef(name, ref.effort)
    try:
        return resolve_model(generator, plain)  # an adapter
    except TuringError as error:
        if error.code is not Code.MODEL_NOT_FOUND:
            raise
        raise not_found(generator, asked) from None


def not_found(generator: Generator, asked: str) -> TuringError:
    """Return the error for a model that is not served."""
    served = ", ".join(served_names(generator))
    words = f"model '{asked[:128]}' not found; served: {served}"
    return TuringError(Code.MODEL_NOT_FOUND, words, param="model")


def served_names(generator: Generator) -> list[str]:
    """Return every model's name and aliases."""
    return [name for info in generator.models() for name in (info.name, *info.aliases)]


def tagged(name: str) -> str:
    """Return ``name`` with its tag, which is ``latest`` where it has none."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST
