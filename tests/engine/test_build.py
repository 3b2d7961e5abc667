"""From settings to a core: what is chosen, what is told, and what is refused."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.rig import Clock, StillWire
from turing_engine.build import build, process_memory
from turing_engine.core import EngineCore
from turing_engine.run.runner import RUNNERS
from turing_engine.run.scripted import ScriptedRunner
from turing_engine.settings import EngineSettings
from turing_kernels import native
from turing_protocol.errors import TuringError
from turing_protocol.messages import Welcome

SCRIPTED = EngineSettings(name="e7", model="scripted:", device="cpu", pages=10)


@pytest.fixture
def wire() -> Iterator[StillWire]:
    wire = StillWire(Clock())
    yield wire
    wire.stop()


def welcome_of(core: EngineCore) -> Welcome:
    return core.identity.welcome


def test_a_scripted_engine(wire: StillWire) -> None:
    welcome = welcome_of(build(SCRIPTED, wire, 5))
    assert (welcome.engine, welcome.epoch, welcome.model.name) == ("e7", 5, "scripted")
    assert (welcome.limits.pages_total, welcome.limits.device) == (10, "cpu")
    assert welcome.limits.context == 640, "no sequence can be longer than the pages there are"
    assert all(len(digest) == 64 for digest in welcome.assets.values())
    assert welcome.state_endpoint == wire.state_endpoint


def test_limits_follow_the_settings(wire: StillWire) -> None:
    settings = replace(
        SCRIPTED, served_name="mine", max_context=100, max_batch_size=3, max_waiting=4
    )
    welcome = welcome_of(build(settings, wire, 5))
    assert (welcome.model.name, welcome.model.aliases) == ("mine", ())
    limits = welcome.limits
    assert (limits.context, limits.max_running, limits.max_waiting) == (100, 3, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runner": "torch"}, "--runner torch"),
        ({"model": "/no/such", "runner": "scripted"}, "--model scripted:"),
        ({"model": "/no/such"}, "/no/such"),
        ({"max_context": 1 << 30}, "exceeds the model"),
        ({"max_step_tokens": 8}, "max_step_tokens"),
        ({"model": "scripted:nonsense=1"}, "nonsense"),
    ],
)
def test_what_cannot_be_built_is_named(
    wire: StillWire, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(TuringError, match=words):
        build(replace(SCRIPTED, **changes), wire, 5)


@pytest.mark.model
def test_the_default_model_is_found_and_served(wire: StillWire) -> None:
    settings = EngineSettings(name="e", device="cpu", pages=20, threads=2, runner="torch")
    welcome = welcome_of(build(settings, wire, 5))
    assert welcome.model.name == "SmolLM2-135M-Instruct"
    assert welcome.model.kv_bytes_per_token > 0
    assert welcome.limits.pages_total == 20


@pytest.mark.parametrize(
    ("changes", "objection", "chosen"),
    [
        ({}, None, "native"),
        ({"dtype": "float32"}, None, "native"),
        ({}, "not built", "torch"),
        ({"dtype": "bfloat16"}, None, "torch"),
        ({"device": "cuda"}, None, "torch"),
    ],
)
def test_the_native_runner_is_taken_where_it_can_serve(
    monkeypatch: pytest.MonkeyPatch,
    wire: StillWire,
    changes: dict[str, object],
    objection: str | None,
    chosen: str,
) -> None:
    asked: list[str] = []

    def get(name: str) -> type[ScriptedRunner]:
        asked.append(name)
        return ScriptedRunner

    monkeypatch.setattr(native, "unsupported", lambda path: objection)
    monkeypatch.setattr(RUNNERS, "get", get)
    settings = EngineSettings(name="e", device="cpu", pages=10)
    with pytest.raises(TuringError, match="scripted model"):
        build(replace(settings, **changes), wire, 5)
    assert asked == [chosen]


def test_an_unknown_runner_is_named(wire: StillWire, tmp_path: Path) -> None:
    with pytest.raises(TuringError, match="no runner called 'abacus'"):
        build(EngineSettings(name="e", device="cpu", runner="abacus"), wire, 5)


@pytest.mark.parametrize("runner", ["torch", "abacus"])
def test_quantising_needs_the_native_runner(wire: StillWire, runner: str) -> None:
    settings = EngineSettings(name="e", device="cpu", runner=runner, quantize="w8")
    with pytest.raises(TuringError, match=f"--quantize w8 needs the native runner, not {runner}"):
        build(settings, wire, 5)


def test_memory_is_measured() -> None:
    used, total = process_memory()
    assert 1 << 20 < used < total


def test_the_engine_process_loads_torch_only_with_its_runner() -> None:
    code = "import sys, turing_engine.main; print({'torch', 'transformers'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
