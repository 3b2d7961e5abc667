"""A TOML file behind flags and variables."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from turing_gateway.configfile import use_config


@click.command(context_settings={"auto_envvar_prefix": "T"})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=use_config,
)
@click.option("--log-level", default="info")
@click.option("--port", type=int, default=1)
def command(log_level: str, port: int) -> None:
    click.echo(f"{log_level} {port}")


def run(path: Path, *flags: str, **variables: str) -> str:
    result = CliRunner().invoke(command, ["--config", str(path), *flags], env=variables)
    return result.output.strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "turing.toml"


def test_flags_win_over_variables_and_those_over_the_file(file: Path) -> None:
    file.write_text('log-level = "debug"\nport = 2')
    assert run(file) == "debug 2"
    assert run(file, T_PORT="3") == "debug 3"
    assert run(file, "--port", "4", T_PORT="3") == "debug 4"


def test_names_may_have_underscores(file: Path) -> None:
    file.write_text('log_level = "debug"')
    assert run(file) == "debug 1"


def test_an_unknown_name_is_refused_with_the_nearest(file: Path) -> None:
    file.write_text("prot = 2")
    assert "unknown setting 'prot'" in run(file)
    assert "did you mean 'port'?" in run(file)


@pytest.mark.parametrize("content", ["port =", "= 5", "[a"])
def test_a_broken_file_is_refused(file: Path, content: str) -> None:
    file.write_text(content)
    assert "cannot read --config" in run(file)


def test_a_missing_file_and_a_wrong_value_are_refused(file: Path) -> None:
    assert "cannot read --config" in run(file)
    file.write_text('port = "x"')
    assert "Invalid value for '--port'" in run(file)
