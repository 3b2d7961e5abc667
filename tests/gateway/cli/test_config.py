"""``turing config show``."""

from pathlib import Path

from click.testing import CliRunner

from turing_gateway.cli.main import cli


def test_every_setting_is_shown_with_its_value_and_origin(tmp_path: Path) -> None:
    file = tmp_path / "turing.toml"
    file.write_text("replicas = 2\n")
    result = CliRunner().invoke(
        cli,
        ["config", "show", "--host", "::1", "--api-key", "secret"],
        env={"TURING_PORT": "9000", "TURING_CONFIG": str(file)},
    )
    assert result.exit_code == 0
    lines = [line.split(maxsplit=2) for line in result.output.splitlines()]
    shown = {name: (value, origin) for name, value, origin in lines}
    assert shown["host"] == ("::1", "command line")
    assert shown["port"] == ("9000", "TURING_PORT")
    assert shown["replicas"] == ("2", "config file")
    assert shown["gateways"] == ("1", "default")
    assert shown["threads"] == ("-", "left to the engine")
    assert shown["api-key"] == ("********", "command line")
    assert "secret" not in result.output
