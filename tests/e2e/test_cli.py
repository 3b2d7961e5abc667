"""``turing generate`` and ``turing chat`` as a person runs them."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from e2e.asking import complete
from e2e.processes import PATIENCE_S, TURING, Served

MODEL = ("--model", "scripted:delay_ms=5")


def turing(*args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TURING, *args], capture_output=True, text=True, input=typed, timeout=PATIENCE_S
    )


def test_generate_prints_the_text_alone() -> None:
    run = turing("generate", *MODEL, "--prompt", "abc", "--max-tokens", "20", "--temperature", "0")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout) == 21 and run.stdout.endswith("\n")
    assert run.stderr == ""


def test_generate_gives_the_same_from_a_server_and_from_its_own_engine(scripted: Served) -> None:
    flags = ("generate", "--prompt", "abc", "--max-tokens", "20", "--temperature", "0", "--json")
    own, remote = (
        json.loads(turing(*flags, *more).stdout) for more in (MODEL, ("--url", scripted.url))
    )
    assert own == remote
    reply = complete(scripted.client(), "abc", max_tokens=20, temperature=0)
    assert own == {
        "model": "scripted",
        "text": reply.text,
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23},
    }


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("generate", "--model", "/no/such.gguf", "--prompt", "x"), 1, "no file or folder"),
        (("generate", "--url", "http://127.0.0.1:1", "--prompt", "x"), 1, "cannot be reached"),
        (("generate", "--url", "nonsense://", "--prompt", "x"), 1, "is not an address such as"),
        (("generate",), 2, "Missing option '--prompt'"),
        (("serve", "--tensor-parallel", "2"), 2, "is not available in this version"),
        (("frobnicate",), 2, "No such command 'frobnicate'"),
    ],
)
def test_mistakes_end_in_one_line_and_a_code(args: Sequence[str], code: int, words: str) -> None:
    run = turing(*args)
    assert run.returncode == code
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    assert words in run.stderr.strip().splitlines()[-1]


def test_chat_reads_a_pipe_and_keeps_the_history(scripted: Served) -> None:
    flags = ("--url", scripted.url, "--max-tokens", "12", "--temperature", "0")
    run = turing("chat", *flags, typed="Hello\nHello\n/reset\nHello\n/quit\nnever\n")
    assert run.returncode == 0, run.stderr
    answers = [line.removeprefix("> ") for line in run.stdout.splitlines() if line.endswith("…")]
    assert len(answers) == 3
    assert answers[0] == answers[2] != answers[1]


class Screen:
    """A program on a pseudo-terminal."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.fd, worker = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            argv, stdin=worker, stdout=worker, stderr=worker, start_new_session=True
        )
        os.close(worker)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.fd, text.encode())

    def until(self, text: str) -> None:
        """Read the screen until it shows ``text`` after what was waited for before."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown += os.read(self.fd, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]


@pytest.fixture
def screen(scripted: Served) -> Iterator[Screen]:
    # A controlling terminal makes Ctrl-C a signal, as it is for a person, and a shell that runs
    # the tests in the background leaves that signal ignored.
    code = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "signal.signal(signal.SIGINT, signal.SIG_DFL);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    argv = [sys.executable, "-c", code, *TURING[1:], "chat", "--url", scripted.url]
    screen = Screen(argv)
    yield screen
    with contextlib.suppress(ProcessLookupError):
        screen.process.kill()
    screen.process.wait()
    os.close(screen.fd)


def test_ctrl_c_stops_the_answer_and_not_the_program(screen: Screen, scripted: Served) -> None:
    screen.until(">")
    screen.type("talk without end\r")
    screen.until("\n")
    while not scripted.metric("turing_num_requests_running"):
        time.sleep(0.02)
    screen.type("\x03")
    screen.until("(stopped)")
    screen.until(">")
    while scripted.metric("turing_num_requests_running"):
        time.sleep(0.02)
    screen.type("\x03")
    screen.until("/quit leaves")
    screen.type("/quit\r")
    assert screen.process.wait(PATIENCE_S) == 0
