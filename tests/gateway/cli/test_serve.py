"""What ``turing serve`` starts, without starting it."""

import socket
import sys

import pytest
from click import ClickException

from turing_gateway.cli.programs import engine_programs, gateway_program
from turing_gateway.cli.serve import address, require_free


def test_engines_bind_inside_the_private_folder_and_the_gateway_dials_them() -> None:
    params = {"model": "m.gguf", "threads": 2, "port": 8000, "api_key": "secret"}
    engines = engine_programs(params, "/run/turing-x", 2)
    assert list(engines) == ["ipc:///run/turing-x/e0", "ipc:///run/turing-x/e1"]
    assert engines["ipc:///run/turing-x/e1"].argv == (
        *(sys.executable, "-P", "-m", "turing_engine"),
        *("--bind", "ipc:///run/turing-x/e1", "--name", "e1", "--exit-with-parent"),
        *("--model", "m.gguf", "--threads", "2"),
    )
    assert gateway_program(params, list(engines)).argv == (
        *(sys.executable, "-P", "-m", "turing_gateway"),
        *("--engines", "ipc:///run/turing-x/e0,ipc:///run/turing-x/e1", "--exit-with-parent"),
        *("--port", "8000"),
    )


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("box.lan", "http://box.lan:80"),
    ],
)
def test_the_address_is_one_that_works_from_here(host: str, url: str) -> None:
    assert address(host, 80) == url


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClickException, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ClickException, match=r"cannot listen on 192\.0\.2\.1:8000"):
        require_free("192.0.2.1", 8000)
