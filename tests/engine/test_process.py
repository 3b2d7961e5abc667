"""The process as its supervisor sees it: ready, drained, forced, orphaned, or refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.rig import Peer, ends_of, failure_of, ids_of, make_submit, wait_for
from turing_engine.core import Exit
from turing_engine.process import Pulse
from turing_protocol.errors import Code
from turing_protocol.messages import Finished, Ping, Pong, Step

pytestmark = pytest.mark.e2e


COMMAND = (sys.executable, "-m", "turing_engine")
SLOW = ("scripted:delay_ms=20",)


class Engine:
    """A started ``python -m turing_engine``."""

    def __init__(self, folder: Path, model: str, *flags: str) -> None:
        self.endpoint = f"ipc://{folder}/e"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "--model", model, "--bind", self.endpoint, "--log-json", *flags],
                stdout=log,
                stderr=log,
            )

    def end(self) -> int:
        return self.process.wait(timeout=30)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[0] == "{"]


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Start an engine with the model and flags that the test names."""
    started = Engine(tmp_path, *request.param)
    yield started
    started.process.kill()
    started.process.wait()


@pytest.mark.parametrize("engine", [("scripted:",)], indirect=True)
def test_serves_and_says_what_it_does(engine: Engine) -> None:
    with Peer(engine.endpoint) as peer:
        epoch = peer.greet().epoch
        peer.send(make_submit(1, b"secret words", epoch=epoch, max_tokens=5))
        assert len(ids_of(peer.until_ended(1), 1)) == 5
    engine.process.send_signal(signal.SIGTERM)
    assert engine.end() == 0
    events = [line["event"] for line in engine.lines()]
    assert events[:3] == ["starting", "listening", "ready"]
    assert "secret" not in engine.log.read_text()


@pytest.mark.parametrize("engine", [SLOW], indirect=True)
def test_sigterm_finishes_what_runs_and_refuses_what_comes(engine: Engine) -> None:
    with Peer(engine.endpoint) as peer:
        epoch = peer.greet().epoch
        peer.send(make_submit(1, epoch=epoch, max_tokens=40))
        peer.receive(Step)
        engine.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in engine.log.read_text())
        peer.send(make_submit(2, epoch=epoch))
        events = peer.until_ended(1, 2)
        assert isinstance(ends_of(events)[1], Finished)
        assert failure_of(events, 2).code is Code.DRAINING
        assert engine.end() == 0


@pytest.mark.parametrize("engine", [(*SLOW, "--drain-seconds", "0.2")], indirect=True)
def test_the_end_of_the_drain_is_told_to_gateways(engine: Engine) -> None:
    with Peer(engine.endpoint) as peer:
        epoch = peer.greet().epoch
        peer.send(make_submit(1, epoch=epoch, max_tokens=10_000))
        peer.receive(Step)
        engine.process.send_signal(signal.SIGINT)
        assert failure_of(peer.until_ended(1), 1).code is Code.ENGINE_LOST
        assert engine.end() == 0


@pytest.mark.parametrize("engine", [("scripted:delay_ms=60000",)], indirect=True)
def test_a_second_signal_ends_even_a_running_step(engine: Engine) -> None:
    with Peer(engine.endpoint) as peer:
        peer.send(make_submit(1, epoch=peer.greet().epoch))
        peer.send(Ping(0.0))
        peer.receive(Pong)
        engine.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in engine.log.read_text())
    engine.process.send_signal(signal.SIGTERM)
    assert engine.end() == 128 + signal.SIGTERM


def test_a_loop_that_hangs_ends_the_process_for_a_fresh_start(tmp_path: Path) -> None:
    code = (
        "from turing_engine import main, process; process.HANG_SECONDS = 5.0; main.main(["
        f"'--model', 'scripted:delay_ms=60000', '--bind', 'ipc://{tmp_path}/e'])"
    )
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file)
    try:
        with Peer(f"ipc://{tmp_path}/e") as peer:
            peer.send(make_submit(1, epoch=peer.greet().epoch))
            assert process.wait(timeout=50) == Exit.BROKEN
    finally:
        process.kill()
        process.wait()
    assert "the step loop hangs" in log.read_text()


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 5))
def test_a_pulse_stops_when_as_many_looks_saw_nothing_new(counts: list[int], looks: int) -> None:
    pulse = Pulse(looks)
    for index, count in enumerate(counts):
        before = counts[max(0, index - looks) : index]
        assert pulse.stopped(count) == (len(before) == looks and set(before) == {count})


def test_ends_with_its_parent(tmp_path: Path) -> None:
    flags = ["--model", "scripted:", "--bind", f"ipc://{tmp_path}/e", "--exit-with-parent"]
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'turing_engine', *{flags!r}])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    with Peer(f"ipc://{tmp_path}/e") as peer:
        peer.greet()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_missing_model_is_one_line_and_exit_1(tmp_path: Path) -> None:
    flags = ["--model", "/no/such/model", "--bind", f"ipc://{tmp_path}/e", "--log-level", "error"]
    run = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("Error: no file or folder '/no/such/model'")
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("bind", ["tcp://nowhere", "carrier://pigeon", "ipc:///no/such/folder/e"])
def test_an_address_that_cannot_be_bound_is_named(bind: str) -> None:
    run = subprocess.run(
        [*COMMAND, "--model", "scripted:", "--bind", bind, "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert run.stderr.startswith(f"Error: cannot bind {bind}")


@pytest.mark.parametrize("engine", [("scripted:",)], indirect=True)
def test_an_address_that_is_served_is_not_taken_over(engine: Engine) -> None:
    with Peer(engine.endpoint) as peer:
        peer.greet()
        run = subprocess.run(
            [*COMMAND, "--model", "scripted:", "--bind", engine.endpoint, "--log-level", "error"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 1
        assert "is served already" in run.stderr
        peer.greet()
