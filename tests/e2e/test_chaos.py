"""Two gateways, two engines, and engines that die or hang under load: answers stay exact."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Semaphore

import openai
import pytest

from e2e.asking import complete
from e2e.processes import ENGINE, GATEWAY, PATIENCE_S, Process, Served, free_port, until

STREAMS = 32
TOKENS = 300
PROMPTS = [f"stream {index}: " for index in range(STREAMS)]


class Cluster:
    """Two engines on ipc sockets, two gateways that both dial both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.engines = [self._engine(index) for index in range(2)]
        self.gateways = [self._gateway() for _ in range(2)]

    def _engine(self, index: int) -> Process:
        argv = [*ENGINE, "--model", "scripted:delay_ms=10", "--name", f"e{index}"]
        argv += ["--bind", self._address(index), "--exit-with-parent"]
        return Process(argv, self._folder / f"e{index}.log")

    def _gateway(self) -> Served:
        port = free_port()
        argv = [*GATEWAY, "--engines", ",".join(map(self._address, range(2)))]
        argv += ["--port", str(port), "--exit-with-parent"]
        return Served(Process(argv, self._folder / f"g{port}.log"), port)

    def _address(self, index: int) -> str:
        return f"ipc://{self._folder}/e{index}"

    def ready(self) -> "Cluster":
        """Wait until both gateways see both engines."""
        for gateway in self.gateways:
            gateway.wait_ready()
            until(partial(both_ready, gateway), "two ready engines")
        return self

    def restart(self, index: int) -> None:
        """Start an engine again on the address it had."""
        self.engines[index].close()
        self.engines[index] = self._engine(index)

    def close(self) -> None:
        """End everything."""
        for process in [*(gateway.process for gateway in self.gateways), *self.engines]:
            process.close()


def states(gateway: Served) -> list[float]:
    lines = gateway.server.text("/metrics").splitlines()
    found = [line for line in lines if line.startswith("turing_engine_state{")]
    return [float(line.split()[-1]) for line in found]


def both_ready(gateway: Served) -> bool:
    return states(gateway) == [1, 1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with contextlib.closing(cluster):
        yield cluster.ready()


def answers(cluster: Cluster, disturb: Callable[[], None] = lambda: None) -> list[str]:
    """Stream every prompt at once, half through each gateway; ``disturb`` when all have begun."""
    clients = [gateway.client() for gateway in cluster.gateways]
    begun = Semaphore(0)

    def ask(index: int) -> str:
        stream = clients[index % 2].completions.create(
            model="scripted", prompt=PROMPTS[index], temperature=0, max_tokens=TOKENS, stream=True
        )
        text = next(iter(stream)).choices[0].text
        begun.release()
        return text + "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(STREAMS) as pool:
        futures = [pool.submit(ask, index) for index in range(STREAMS)]
        for _ in futures:
            assert begun.acquire(timeout=PATIENCE_S)
        disturb()
        return [future.result() for future in futures]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_streams_go_on_exactly_when_an_engine_is_lost(cluster: Cluster, number: int) -> None:
    undisturbed = answers(cluster)
    assert len(set(undisturbed)) == STREAMS
    assert all(len(text) == TOKENS for text in undisturbed)
    assert answers(cluster, lambda: cluster.engines[0].signal(number)) == undisturbed


def test_a_restarted_engine_is_used_again(cluster: Cluster) -> None:
    undisturbed = answers(cluster)
    cluster.engines[1].signal(signal.SIGKILL)
    until(lambda: states(cluster.gateways[0]).count(1) == 1, "the loss of an engine")
    cluster.restart(1)
    cluster.ready()
    assert answers(cluster) == undisturbed


def test_with_no_engine_left_streams_end_in_an_error_and_gateways_live(cluster: Cluster) -> None:
    gateway = cluster.gateways[0]
    stream = gateway.client().completions.create(
        model="scripted", prompt="x", max_tokens=100_000, stream=True
    )
    next(iter(stream))
    for engine in cluster.engines:
        engine.signal(signal.SIGKILL)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert "engine" in caught.value.message
    assert gateway.server.text("/health/live") == ""
    assert not gateway.server.ready()
    with pytest.raises(openai.InternalServerError):
        complete(gateway.client(), "x")
    cluster.restart(0)
    gateway.wait_ready()
    assert complete(gateway.client(), "x", max_tokens=3).usage[1] == 3
