"""``turing serve`` as a process: what it starts, restarts, drains and leaves behind."""

import json
import re
import shlex
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.asking import chat, complete
from e2e.processes import TURING, Served, alive, children, free_port, serve, serving, until

MODEL = ("--model", "scripted:delay_ms=5")
RUNNING = r'turing_engine_num_requests_running\{engine="(\w+)"\} 1'


def test_the_ready_line_holds_a_command_that_works(tmp_path: Path) -> None:
    with serving(tmp_path, *MODEL) as served:
        until(lambda: "curl" in served.process.output, "the ready line")
        first, command = served.process.output.strip().splitlines()
        assert served.url in first
        assert "scripted" in first
        argv = shlex.split(command)
        run = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60)
        assert json.loads(run.stdout)["choices"][0]["message"]["content"]


def test_sockets_lie_in_a_private_folder_that_goes_away(tmp_path: Path) -> None:
    with serving(tmp_path, *MODEL) as served:
        engine = children(served.process.pid)["e0"]
        command = Path(f"/proc/{engine}/cmdline").read_text()
        found = re.search(r"ipc://(/[^\0]+)/e0", command)
        assert found
        folder = Path(found[1])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_the_gateway_process_has_no_torch(tmp_path: Path) -> None:
    with serving(tmp_path, *MODEL) as served:
        chat(served.client(), "Hi", max_tokens=2)
        gateway = children(served.process.pid)["turing_gateway"]
        mapped = Path(f"/proc/{gateway}/maps").read_text()
        assert "libzmq" in mapped or "zmq" in mapped
        assert "libtorch" not in mapped and "numpy" not in mapped


def test_an_engine_that_dies_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, *MODEL) as served:
        before = complete(served.client(), "abc", temperature=0, max_tokens=20)
        old = children(served.process.pid)["e0"]
        subprocess.run(["kill", "-9", str(old)], check=True)
        until(lambda: not alive(old), "the end of the engine")
        until(lambda: children(served.process.pid).get("e0", old) != old, "another engine")
        until(served.server.ready, "readiness")
        assert complete(served.client(), "abc", temperature=0, max_tokens=20) == before


def test_a_stream_moves_to_the_other_replica(tmp_path: Path) -> None:
    with serving(tmp_path, *MODEL, "--replicas", "2") as served:
        client = served.client()
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 600}
        whole = complete(client, "abc", **asked).text
        stream = client.completions.create(model="scripted", prompt="abc", stream=True, **asked)
        text = next(iter(stream)).choices[0].text
        busy = until(lambda: re.search(RUNNING, served.server.text("/metrics")), "the busy engine")
        subprocess.run(["kill", "-9", str(children(served.process.pid)[busy[1]])], check=True)
        assert text + "".join(chunk.choices[0].text for chunk in stream) == whole


def test_sigterm_lets_streams_finish_and_exits_0(tmp_path: Path) -> None:
    served = serve(tmp_path, *MODEL).wait_ready()
    try:
        left = children(served.process.pid)
        stream = served.client().completions.create(
            model="scripted", prompt="x", max_tokens=150, stream=True
        )
        text = next(iter(stream)).choices[0].text
        served.process.signal(signal.SIGTERM)
        until(lambda: not served.server.ready(), "the end of readiness")
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert len(text) == 150
        assert served.process.wait() == 0
        assert not any(alive(pid) for pid in left.values())
    finally:
        served.process.close()


def test_sigint_stops_an_idle_server(tmp_path: Path) -> None:
    served = serve(tmp_path, *MODEL).wait_ready()
    served.process.signal(signal.SIGINT)
    assert served.process.wait() == 0


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    served = serve(tmp_path, *MODEL).wait_ready()
    stream = served.client().completions.create(
        model="scripted", prompt="x", max_tokens=100_000, stream=True
    )
    next(iter(stream))
    served.process.signal(signal.SIGTERM)
    until(lambda: not served.server.ready(), "the end of readiness")
    served.process.signal(signal.SIGTERM)
    assert served.process.wait() == 1
    stream.close()


def test_a_killed_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    served = serve(tmp_path, *MODEL, "--replicas", "2").wait_ready()
    left = children(served.process.pid)
    assert set(left) == {"e0", "e1", "turing_gateway"}
    served.process.signal(signal.SIGKILL)
    served.process.wait()
    until(lambda: not any(alive(pid) for pid in left.values()), "the end of all children", 20)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "/no/such.gguf"), "e0 did not start (exit code 1): no file or folder"),
        (("--model", "scripted:", "--kv-memory", "much"), "'much' is not a size"),
        (("--model", "scripted:", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(flags: tuple[str, ...], words: str) -> None:
    argv = [*TURING, "serve", "--port", str(free_port()), *flags]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    errors = [line for line in run.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and words in errors[0]
    assert run.stdout == ""


def test_a_port_in_use_is_found_before_anything_starts(scripted: Served) -> None:
    argv = [*TURING, "serve", "--port", scripted.url.rpartition(":")[2], *MODEL]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr.startswith("Error: cannot listen on 127.0.0.1:")
    assert run.stderr.count("\n") == 1


def test_a_key_is_asked_for_and_is_on_no_command_line(tmp_path: Path) -> None:
    with serving(tmp_path, *MODEL, "--api-key", "sesame") as served:
        client = served.client()
        assert client.with_options(api_key="sesame").models.list().data[0].id == "scripted"
        for pid in children(served.process.pid).values():
            assert "sesame" not in Path(f"/proc/{pid}/cmdline").read_text()
