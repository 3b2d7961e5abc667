"""Server processes of end-to-end tests: started, waited for, watched, ended by pid."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from turing_gateway.cli.client import Server

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long anything may take before a test gives up on it; never how long it should take."""

TURING = (sys.executable, "-P", "-m", "turing_gateway.cli")
GATEWAY = (sys.executable, "-P", "-m", "turing_gateway")
ENGINE = (sys.executable, "-P", "-m", "turing_engine")


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def until(look: Callable[[], T | None], what: str, seconds: float = PATIENCE_S) -> T:
    """Return the first ``look()`` that holds, or fail saying that ``what`` did not come."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds:g} s")
        time.sleep(0.02)
    return found


class Process:
    """A process of ours and the file that holds what it wrote."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self.argv = list(argv)
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                self.argv, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it wrote so far, errors included."""
        return self.log.read_text()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ended(self) -> bool:
        """Whether it is over."""
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it: asked first, then made to."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                self.signal(number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Served:
    """A process that serves HTTP: ``turing serve`` or a gateway alone."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.server = Server(self.url)

    def wait_ready(self) -> "Served":
        """Wait until it can serve; an early end fails with what it wrote."""

        def ready() -> bool:
            assert not self.process.ended(), self.process.output
            return self.server.ready()

        until(ready, f"readiness of {self.url}")
        return self

    def client(self) -> OpenAI:
        """Return an SDK client that does not try again by itself."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    def metric(self, name: str) -> float:
        """Return the sum over all series of one sample name of ``/metrics``."""
        samples = text_string_to_metric_families(self.server.text("/metrics"))
        found = [s.value for family in samples for s in family.samples if s.name == name]
        assert found, f"no metric {name}"
        return float(sum(found))


def serve(folder: Path, *flags: str) -> Served:
    """Start ``turing serve`` on a free port."""
    port = free_port()
    argv = [*TURING, "serve", "--port", str(port), *flags]
    return Served(Process(argv, folder / f"serve-{port}.log"), port)


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Served]:
    """Run ``turing serve`` while the context lasts, from when it is ready."""
    served = serve(folder, *flags)
    try:
        yield served.wait_ready()
    finally:
        served.process.close()


def children(pid: int) -> dict[str, int]:
    """Return the pids of a process's children by the module that each runs."""
    found: dict[str, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                words = (stat.parent / "cmdline").read_text().split("\0")
                named = words[words.index("--name") + 1] if "--name" in words else ""
                module = words[words.index("-m") + 1] if "-m" in words else words[0]
                found[named or module] = int(stat.parent.name)
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
