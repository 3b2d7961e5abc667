"""Addresses of engines from specs."""

import asyncio
import socket

import pytest

from turing_gateway.fleet.discovery import Dns, look, sources
from turing_gateway.fleet.sockets import state_endpoint
from turing_protocol.errors import Code, TuringError


def found(spec: str) -> list[str]:
    async def ask() -> list[str]:
        return [address for source in sources([spec]) for address in await source.addresses()]

    return asyncio.run(ask())


def test_fixed_addresses_are_dialled_as_written() -> None:
    spec = "tcp://10.0.0.1:5555, ipc:///run/e.sock,tcp://[::1]:7,tcp://10.0.0.1:5555"
    assert found(spec) == ["tcp://10.0.0.1:5555", "ipc:///run/e.sock", "tcp://[::1]:7"]
    assert not any(source.changes for source in sources([spec]))


def test_a_name_is_resolved_and_asked_again() -> None:
    assert "tcp://127.0.0.1:5555" in found("dns://localhost:5555")
    assert all(source.changes for source in sources(["dns://localhost:5555"]))


@pytest.mark.parametrize(
    "spec",
    [
        "host:5555",
        "http://h:1",
        "tcp://h",
        "tcp://h:0",
        "tcp://h:65536",
        "tcp://:5",
        "tcp://h:5555/x",
        "ipc://",
        "dns://h",
        "dns://a b:1",
    ],
)
def test_a_bad_address_is_named(spec: str) -> None:
    with pytest.raises(TuringError, match="engine address") as caught:
        sources([spec])
    assert caught.value.code == Code.INVALID
    assert spec in caught.value.message


def test_what_is_known_stays_while_the_name_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror("no server")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert asyncio.run(look(Dns("dns://engines:1"), ["tcp://10.0.0.1:1"])) == ["tcp://10.0.0.1:1"]


@pytest.mark.parametrize(
    ("dialled", "named", "opened"),
    [
        ("tcp://10.0.0.3:5555", "tcp://*:5556", "tcp://10.0.0.3:5556"),
        ("tcp://[fe80::1]:5555", "tcp://*:5556", "tcp://[fe80::1]:5556"),
        ("ipc:///run/e", "tcp://*:5556", "tcp://127.0.0.1:5556"),
        ("tcp://10.0.0.3:5555", "tcp://10.0.0.9:1", "tcp://10.0.0.9:1"),
        ("ipc:///run/e", "ipc:///run/e.s", "ipc:///run/e.s"),
    ],
)
def test_the_state_socket_is_where_we_dialled(dialled: str, named: str, opened: str) -> None:
    assert state_endpoint(dialled, named) == opened
