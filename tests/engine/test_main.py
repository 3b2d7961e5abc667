"""The command line: flags, variables and file become settings, mistakes become one line."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from turing_engine import main as module
from turing_engine.process import EngineProcess
from turing_engine.settings import EngineSettings


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[EngineSettings]:
    """Return the settings that processes are made of; none is started."""
    made: list[EngineSettings] = []

    def keep(self: EngineProcess, settings: EngineSettings) -> None:
        made.append(settings)

    monkeypatch.setattr(EngineProcess, "__init__", keep)
    monkeypatch.setattr(EngineProcess, "run", lambda self: 0)
    return made


def invoke(*flags: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(module.main, flags, env={"HF_HOME": None, **(env or {})})


def test_defaults(seen: list[EngineSettings]) -> None:
    assert invoke().exit_code == 0
    (settings,) = seen
    assert settings == EngineSettings(name=settings.name)
    assert settings.name.startswith("e")


def test_flags_win_over_variables_and_those_over_the_file(
    seen: list[EngineSettings], tmp_path: Path
) -> None:
    file = tmp_path / "engine.toml"
    file.write_text('name = "file"\nserved-name = "file"\nthreads = 1\nkv-memory = "1GiB"\n')
    env = {"TURING_CONFIG": str(file), "TURING_SERVED_NAME": "env", "TURING_THREADS": "2"}
    assert invoke("--threads", "3", env=env).exit_code == 0
    (settings,) = seen
    assert (settings.name, settings.served_name, settings.threads) == ("file", "env", 3)
    assert settings.kv_memory == 1 << 30


def test_the_hugging_face_home_is_read_from_its_own_variable(seen: list[EngineSettings]) -> None:
    assert invoke(env={"HF_HOME": "/models"}).exit_code == 0
    assert seen[0].hf_home == Path("/models")


def test_assets_are_written_instead_of_served(seen: list[EngineSettings], tmp_path: Path) -> None:
    flags = ("--model", "scripted:", "--write-assets", str(tmp_path / "out"))
    assert invoke(*flags).exit_code == 0
    assert seen == []
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_assets_of_no_model_are_one_line(seen: list[EngineSettings], tmp_path: Path) -> None:
    result = invoke("--model", "/no/such.gguf", "--write-assets", str(tmp_path))
    assert (result.exit_code, seen) == (1, [])
    assert "/no/such.gguf" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-memory", "lots"), "is not a size"),
        (("--device", "tpu"), "tpu"),
        (("--max-batch-size", "0"), "0 is not in the range"),
        (("--config", "/no/such.toml"), "/no/such.toml"),
        (("--speed", "9"), "--speed"),
    ],
)
def test_mistakes_are_named(seen: list[EngineSettings], flags: tuple[str, ...], words: str) -> None:
    result = invoke(*flags)
    assert (result.exit_code, seen) == (2, [])
    assert words in result.output
