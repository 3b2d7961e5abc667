"""The supervisor, driven with small real programs."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turing_gateway.launch import Backoff, Program, StartFailed, Supervisor, supervise

DRAINING = """
import pathlib, signal, sys, time
name, folder, code = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
def stop(number, frame):
    with (folder / "order").open("a") as order:
        order.write(name + "\\n")
    sys.exit(code)
signal.signal(signal.SIGTERM, stop)
(folder / name).touch()
while True:
    time.sleep(0.05)
"""

DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[2], sys.argv[1]).touch()
time.sleep(600)
"""

CRASHING = """
import pathlib, sys, time
runs = pathlib.Path(sys.argv[1])
with runs.open("a") as file:
    file.write("run\\n")
time.sleep(0.1)
sys.exit(7)
"""


def program(name: str, code: str, *args: object) -> Program:
    return Program(name, (sys.executable, "-c", code, *map(str, args)))


def exist(*paths: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return all(path.exists() for path in paths)

    return ready


async def never() -> bool:
    return False


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def test_a_first_restart_comes_soon_and_later_ones_are_bounded() -> None:
    backoff = Backoff()
    assert [backoff.after(0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert backoff.after(30) == 0.2


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=40))
def test_a_pause_is_always_between_first_and_most(lives: list[float]) -> None:
    backoff = Backoff()
    assert all(0.2 <= backoff.after(lived) <= 10 for lived in lives)


async def _start_failure(*programs: Program) -> tuple[str, list[str]]:
    said: list[str] = []
    supervisor = Supervisor(programs, say=said.append)
    with pytest.raises(StartFailed) as failure:
        await supervisor.start(never)
    await supervisor.stop()
    return str(failure.value), said


def test_a_program_that_cannot_start_gives_its_last_line_as_the_reason() -> None:
    code = "import sys; print('loading'); print('Error: no such file: m.gguf'); sys.exit(1)"
    message, said = asyncio.run(_start_failure(program("e0", code)))
    assert message == "e0 did not start (exit code 1): no such file: m.gguf"
    assert said == ["loading"]


def test_a_silent_death_is_reported_by_its_signal() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    message, _ = asyncio.run(_start_failure(program("e0", code)))
    assert message == "e0 did not start (killed by SIGSEGV): it gave no reason"


def test_one_failing_engine_stops_the_others(tmp_path: Path) -> None:
    message, _ = asyncio.run(
        _start_failure(
            program("e0", DRAINING, "e0", tmp_path, 0),
            program("e1", "import sys; sys.exit(3)"),
        )
    )
    assert message.startswith("e1 did not start (exit code 3)")


def test_an_oversized_line_of_output_does_not_stop_the_program(tmp_path: Path) -> None:
    code = (
        f"print('x' * 5_000_000); open({str(tmp_path / 'e0')!r}, 'w'); import time; time.sleep(60)"
    )

    async def run() -> bool:
        supervisor = Supervisor([program("e0", code)], say=lambda line: None)
        await supervisor.start(exist(tmp_path / "e0"))
        return await supervisor.stop()

    assert asyncio.run(run())


def test_the_gateway_is_stopped_before_the_engines(tmp_path: Path) -> None:
    async def run() -> bool:
        supervisor = Supervisor(
            [program(name, DRAINING, name, tmp_path, 0) for name in ("e0", "e1")],
            program("gateway", DRAINING, "gateway", tmp_path, 0),
        )
        await supervisor.start(exist(*(tmp_path / name for name in ("e0", "e1", "gateway"))))
        return await supervisor.stop()

    assert asyncio.run(run())
    order = (tmp_path / "order").read_text().split()
    assert order[0] == "gateway" and sorted(order[1:]) == ["e0", "e1"]


def test_a_program_that_dies_is_started_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    said: list[str] = []

    async def run() -> bool:
        supervisor = Supervisor([program("e0", CRASHING, runs)], say=said.append)
        await supervisor.start(exist(runs))
        await until(lambda: runs.read_text().count("run") >= 3)
        return await supervisor.stop()

    assert asyncio.run(run())
    assert said[:2] == [
        "e0 ended (exit code 7); starting it again in 0.2 s",
        "e0 ended (exit code 7); starting it again in 0.4 s",
    ]


def test_a_killed_program_takes_its_own_children_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid.new').write_text(str(child.pid))\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid.new').rename({str(tmp_path / 'pid')!r})\n"
        "child.wait()"
    )

    async def run() -> int:
        supervisor = Supervisor([program("e0", code)])
        await supervisor.start(exist(tmp_path / "pid"))
        supervisor.kill()
        await supervisor.stop()
        return int((tmp_path / "pid").read_text())

    pid = asyncio.run(run())
    asyncio.run(asyncio.wait_for(until(lambda: not _alive(pid)), 20))


def test_a_program_that_dies_does_not_wait_for_children_of_its_own(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, pathlib, time\n"
        "subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        "os._exit(3)"
    )
    said: list[str] = []

    async def run() -> None:
        supervisor = Supervisor([program("e0", code)], say=said.append)
        await supervisor.start(exist(tmp_path / "up"))
        (tmp_path / "go").touch()
        await until(lambda: len(said) >= 1)
        await supervisor.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert said[0].startswith("e0 ended (exit code 3); starting it again")


def test_programs_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, sys\n"
        "from turing_gateway.launch import Program, Supervisor\n"
        "async def main():\n"
        "    supervisor = Supervisor([Program('e0', ('sleep', '600'))])\n"
        "    async def ready(): return bool(supervisor._children)\n"
        "    await supervisor.start(ready)\n"
        "    print(supervisor._children['e0'].pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with killed:
        assert killed.stdout is not None
        pid = int(killed.stdout.readline())
        assert _alive(pid)
        killed.kill()
    asyncio.run(asyncio.wait_for(until(lambda: not _alive(pid)), 20))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def _supervised(tmp_path: Path, code: str, signals: int) -> bool:
    supervisor = Supervisor([program("e0", code, "e0", tmp_path, 0)])
    announced = asyncio.Event()

    async def interrupt() -> None:
        await announced.wait()
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(interrupt())
    clean = await supervise(supervisor, exist(tmp_path / "e0"), announced.set)
    await task
    return clean


def test_one_signal_drains(tmp_path: Path) -> None:
    assert asyncio.run(_supervised(tmp_path, DRAINING, 1)) is True
    assert (tmp_path / "order").read_text() == "e0\n"


def test_a_second_signal_forces(tmp_path: Path) -> None:
    assert asyncio.run(_supervised(tmp_path, DEAF, 2)) is False


def test_a_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    async def run() -> bool:
        supervisor = Supervisor([program("e0", DRAINING, "e0", tmp_path, 0)])

        async def ready() -> bool:
            if (tmp_path / "e0").exists():
                os.kill(os.getpid(), signal.SIGINT)
            return False

        return await supervise(supervisor, ready, lambda: pytest.fail("it was never ready"))

    assert asyncio.run(run()) is True
