"""A model's assets as files."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from turing_engine.export import export
from turing_engine.run.scripted import scripted_files, scripted_info
from turing_engine.settings import EngineSettings
from turing_protocol.errors import Code, TuringError
from turing_protocol.folder import ASSET_FILES, INFO_FILE, info_from_json

MODEL = "scripted:"


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings(**({"name": "e0", "model": MODEL} | fields))


def test_every_file_is_written_and_the_facts(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "assets"
    export(settings(), folder)
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert info_from_json(written.pop(INFO_FILE)) == scripted_info(MODEL)
    assert written == scripted_files()
    assert set(written) == set(ASSET_FILES)


def test_the_served_name_is_that_of_the_file(tmp_path: Path) -> None:
    export(settings(served_name="mine"), tmp_path)
    info = info_from_json((tmp_path / INFO_FILE).read_bytes())
    assert info == replace(scripted_info(MODEL), name="mine", aliases=())


def test_older_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "chat_template").write_text("old")
    export(settings(), tmp_path)
    assert (tmp_path / "chat_template").read_bytes() == scripted_files()["chat_template"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TuringError, match=r"cannot write to .*file/in") as caught:
        export(settings(), tmp_path / "file" / "in")
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "write_assets")


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TuringError, match=r"none\.gguf"):
        export(settings(model=str(tmp_path / "none.gguf")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.model
def test_the_default_model_is_written_without_its_weights(tmp_path: Path) -> None:
    export(settings(model=None), tmp_path)
    info = info_from_json((tmp_path / INFO_FILE).read_bytes())
    assert info.name == "SmolLM2-135M-Instruct"
    assert (tmp_path / "tokenizer.json").stat().st_size > 1_000_000
