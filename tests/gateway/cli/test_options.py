"""Settings of ``turing``: flag, variable, file, and which process gets what."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from turing_gateway.cli.options import (
    ENGINE,
    GATEWAY,
    SETTINGS,
    argv,
    environment,
    with_settings,
)

SEEN: dict[str, Any] = {}


@click.command()
@with_settings(SETTINGS)
def command(**params: Any) -> None:
    """Keep what was set."""
    SEEN.clear()
    SEEN.update(params)


def run(*args: str, **env: str) -> click.testing.Result:
    return CliRunner().invoke(command, args, env=dict(env))


def test_a_flag_wins_over_a_variable_over_a_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "turing.toml"
    file.write_text('host = "file"\nport = 1\nreplicas = 5\n')
    result = run("--config", str(file), "--host", "flag", TURING_HOST="env", TURING_PORT="2")
    assert result.exit_code == 0
    chosen = {key: SEEN[key] for key in ("host", "port", "replicas", "gateways")}
    assert chosen == {"host": "flag", "port": 2, "replicas": 5, "gateways": 1}


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        value = str(setting.default) if setting.default is not None else "7"
        assert run(**{setting.variable: value}).exit_code == 0
        assert SEEN[setting.key] == click.types.convert_type(setting.type).convert(
            value, None, None
        )


def test_a_file_may_spell_names_as_flags_do(tmp_path: Path) -> None:
    file = tmp_path / "turing.toml"
    file.write_text("max-batch-size = 3\nkv_memory = '1GiB'\n")
    assert run(TURING_CONFIG=str(file)).exit_code == 0
    assert (SEEN["max_batch_size"], SEEN["kv_memory"]) == (3, "1GiB")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batchsize = 3", "unknown setting 'max_batchsize'"),
        ("max_batchsize = 3", "did you mean 'max_batch_size'?"),
        ("= 3", "Invalid"),
        ("port = 'http'", "'http' is not a valid integer"),
        ("tensor-parallel = 2", "not available in this version"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "turing.toml"
    file.write_text(text)
    result = run("--config", str(file))
    assert result.exit_code == 2
    assert message in result.output


def test_a_missing_file_is_named() -> None:
    result = run("--config", "nowhere.toml")
    assert result.exit_code == 2
    assert "cannot read --config nowhere.toml: " in result.output


@pytest.mark.parametrize(
    "flags",
    [
        ("--gateways", "2"),
        ("--tensor-parallel", "2"),
        ("--pipeline-parallel", "4"),
        ("--sparsity", "0.5"),
    ],
)
def test_what_this_version_lacks_is_refused_in_one_line(flags: tuple[str, str]) -> None:
    result = run(*flags)
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {flags[0]} {flags[1]} is not available")
    assert result.output.count("\n") == 1


def test_each_program_gets_its_own_flags_and_only_what_was_set() -> None:
    assert run("--model", "m.gguf", "--prefill-chunk", "-1", "--port", "9").exit_code == 0
    assert argv(SEEN, ENGINE) == [
        *("--model", "m.gguf", "--prefill-chunk", "-1", "--log-level", "warning")
    ]
    gateway = argv(SEEN, GATEWAY)
    assert dict(zip(gateway[::2], gateway[1::2], strict=True)) == {
        "--host": "127.0.0.1",
        "--port": "9",
        "--grace-seconds": "30.0",
        "--log-level": "warning",
    }


def test_a_key_travels_as_a_variable_and_never_as_a_flag() -> None:
    assert run("--api-key", "secret").exit_code == 0
    assert "secret" not in argv(SEEN, GATEWAY) + argv(SEEN, ENGINE)
    assert environment({"PATH": "/bin"}, "secret") == {"PATH": "/bin", "TURING_API_KEY": "secret"}


def test_variables_that_were_read_here_do_not_reach_the_programs_again() -> None:
    base = {"TURING_PORT": "1", "TURING_CONFIG": "x.toml", "TURING_MAX_WAITING": "5", "HOME": "/"}
    assert environment(base) == {"TURING_MAX_WAITING": "5", "HOME": "/"}
