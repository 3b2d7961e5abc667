"""Settings: sizes, addresses and the config file."""

from pathlib import Path

import msgspec
import pytest

from turing_engine.settings import (
    EngineSettings,
    advertised,
    default_state_bind,
    is_exposed,
    parse_size,
    read_config,
)
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import CHUNK, Lane


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("1.5 gib", 3 << 29),
        ("3GB", 3 * 10**9),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 G i B", "2XB", "1e9", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("bind", "state"),
    [
        ("ipc:///run/e0", "ipc:///run/e0-state"),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"),
        ("tcp://*:7000", "tcp://*:7001"),
        ("tcp://[::1]:7000", "tcp://[::1]:7001"),
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
    ],
)
def test_the_state_socket_is_beside_the_request_socket(bind: str, state: str) -> None:
    assert default_state_bind(bind) == state
    assert EngineSettings(name="e", bind=bind).state_endpoint == state
    assert EngineSettings(name="e", bind=bind, state_bind="ipc:///x").state_endpoint == "ipc:///x"


@pytest.mark.parametrize(
    ("state", "bind", "told"),
    [
        ("ipc:///run/e0-state", "ipc:///run/e0", "ipc:///run/e0-state"),
        ("tcp://0.0.0.0:5556", "tcp://0.0.0.0:5555", "tcp://*:5556"),
        ("tcp://[::]:5556", "tcp://[::]:5555", "tcp://*:5556"),
        ("tcp://10.0.0.7:5556", "tcp://10.0.0.7:5555", "tcp://*:5556"),
        ("tcp://10.0.0.8:5556", "tcp://10.0.0.7:5555", "tcp://10.0.0.8:5556"),
    ],
)
def test_gateways_are_told_where_the_state_socket_is(state: str, bind: str, told: str) -> None:
    assert advertised(state, bind) == told


@pytest.mark.parametrize(
    ("endpoint", "exposed"),
    [
        ("ipc:///run/e0", False),
        ("tcp://127.0.0.1:5555", False),
        ("tcp://localhost:5555", False),
        ("tcp://[::1]:5555", False),
        ("tcp://0.0.0.0:5555", True),
        ("tcp://[::]:5555", True),
        ("tcp://10.0.0.7:5555", True),
    ],
)
def test_who_can_reach_an_address(endpoint: str, exposed: bool) -> None:
    assert is_exposed(endpoint) is exposed


def test_prefill_chunks() -> None:
    by_lane = EngineSettings(name="e")
    assert (by_lane.chunk(8192), by_lane.step_tokens(8192)) == (CHUNK, 2048)
    capped = EngineSettings(name="e", prefill_chunk=100)
    assert capped.chunk(8192) == dict.fromkeys(Lane, 100)
    whole = EngineSettings(name="e", prefill_chunk=-1, max_batch_size=4)
    assert whole.chunk(8192) == dict.fromkeys(Lane, 8192)
    assert whole.step_tokens(8192) == 8196


def test_there_are_few_settings() -> None:
    assert len(msgspec.structs.fields(EngineSettings)) <= 45


def test_a_config_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text('model = "scripted:"\nmax-batch-size = 4\nkv_memory = "1GiB"\n')
    known = {"model", "max_batch_size", "kv_memory"}
    assert read_config(file, known) == {
        "model": "scripted:",
        "max_batch_size": 4,
        "kv_memory": "1GiB",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [("max_batch = 4", "did you mean max_batch_size"), ("a = ", "Invalid value"), ("zz=1", "'zz'")],
)
def test_a_bad_config_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(text)
    with pytest.raises(TuringError, match=words) as caught:
        read_config(file, {"max_batch_size"})
    assert caught.value.code is Code.INVALID
    assert str(file) in caught.value.message
