"""The command line of ``turing-gateway``."""

import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from turing_gateway import main
from turing_gateway.settings import GatewaySettings


def run(*flags: str, **variables: str) -> Result:
    return CliRunner().invoke(main.main, flags, env=variables)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySettings]:
    """Collect the settings of gateways that would be started."""
    seen: list[GatewaySettings] = []

    async def record(settings: GatewaySettings) -> bool:
        seen.append(settings)
        return True

    monkeypatch.setattr(main, "run", record)
    return seen


def test_defaults_are_those_of_the_settings(started: list[GatewaySettings]) -> None:
    assert run("--engines", "tcp://e0:5555").exit_code == 0
    assert started == [GatewaySettings(engines=("tcp://e0:5555",))]


def test_every_flag_has_a_variable(started: list[GatewaySettings]) -> None:
    values: dict[str, Any] = {
        "engines": ("ipc:///a", "dns://b:1"),
        "host": "0.0.0.0",
        "port": 81,
        "api_key": "k",
        "render_only": True,
        "assets": None,
        "max_body_bytes": 4096,
        "grace_seconds": 1.5,
        "metrics_alias": "vllm",
        "exit_with_parent": True,
        "log_level": "error",
        "log_json": True,
    }
    assert set(values) == set(GatewaySettings.__struct_fields__)
    texts = {name: str(value) for name, value in values.items() if value is not None} | {
        "engines": "ipc:///a, dns://b:1"
    }
    assert run(**{f"TURING_{name.upper()}": text for name, text in texts.items()}).exit_code == 0
    assert started == [GatewaySettings(**values)]


def test_a_folder_of_assets_stands_in_for_engines(
    started: list[GatewaySettings], tmp_path: Path
) -> None:
    flags = ("--render-only", "--assets", str(tmp_path))
    assert run(*flags).exit_code == 0
    assert run(TURING_RENDER_ONLY="1", TURING_ASSETS=str(tmp_path)).exit_code == 0
    assert started == [GatewaySettings(render_only=True, assets=tmp_path)] * 2


def test_the_key_is_not_logged(
    started: list[GatewaySettings], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run("--engines", "ipc:///a", TURING_API_KEY="s3cret")
    assert "starting" in result.output
    assert "s3cret" not in result.output


def test_an_open_address_without_a_key_is_warned_of(started: list[GatewaySettings]) -> None:
    assert "without an API key" in run("--engines", "ipc:///a", "--host", "0.0.0.0").output
    key = ("--api-key", "k")
    assert "without an API key" not in run("--engines", "x", "--host", "0.0.0.0", *key).output
    assert "without an API key" not in run("--engines", "ipc:///a").output


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ((), 2, "--engines is required"),
        (("--render-only",), 2, "--engines is required"),
        (("--assets", "."), 2, "--assets goes with --render-only and without --engines"),
        (("--assets", ".", "--render-only", "--engines", "ipc:///a"), 2, "without --engines"),
        (("--assets", "/no/such", "--render-only"), 2, "--assets"),
        (("--assets", ".", "--render-only"), 1, "cannot read model.json"),
        (("--engines", "http://x"), 1, "engine address 'http://x'"),
        (("--engines", "tcp://x"), 1, "expected host:port"),
        (("--engines", "ipc:///a", "--port", "70000"), 2, "--port"),
        (("--engines", "ipc:///a", "--metrics-alias", "x"), 2, "--metrics-alias"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(flags: tuple[str, ...], code: int, words: str) -> None:
    result = run(*flags)
    assert result.exit_code == code
    assert words in result.output
    assert "Traceback" not in result.output


def test_an_address_in_use_is_exit_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("--engines", f"ipc://{tmp_path}/none", "--port", str(port))
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.output
