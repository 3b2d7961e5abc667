"""Every command of the README, run as it is printed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from e2e.processes import PATIENCE_S, TURING, Process, Served, free_port

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PRINTED_URL = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    joined = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in joined.splitlines() if line.strip()]


def test_the_readme_has_no_other_commands() -> None:
    programs = {argv[0] for argv in commands()}
    assert programs == {
        "make",
        "curl",
        ".venv/bin/turing",
        ".venv/bin/turing-engine",
        ".venv/bin/turing-gateway",
    }


def test_make_targets_exist() -> None:
    targets = [argv[1] for argv in commands() if argv[0] == "make"]
    assert targets == ["setup", "serve"]
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_the_curl_is_answered(smollm: Served) -> None:
    (argv,) = (argv for argv in commands() if argv[0] == "curl")
    argv = [word.replace(PRINTED_URL, smollm.url) for word in argv]
    run = subprocess.run(
        [*argv, "--fail-with-body"], capture_output=True, check=True, text=True, timeout=PATIENCE_S
    )
    assert json.loads(run.stdout)["choices"][0]["message"]["content"]


def test_the_python_is_answered(smollm: Served) -> None:
    (code,) = blocks("python")
    run = subprocess.run(
        [sys.executable, "-c", code.replace(PRINTED_URL, smollm.url)],
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.stdout


@pytest.mark.parametrize(
    "argv", [argv for argv in commands() if argv[0] == ".venv/bin/turing"], ids=" ".join
)
def test_terminal_commands_print_something(argv: list[str]) -> None:
    run = subprocess.run([*TURING, *argv[1:]], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()


def half(program: str, flag: str, places: dict[str, str]) -> list[str]:
    """Return the printed command of ``program`` with ``flag``; printed places become free ones."""
    (argv,) = (a for a in commands() if a[0] == f".venv/bin/{program}" and flag in a)
    text = "\0".join(argv[1:])
    for printed, free in places.items():
        text = text.replace(printed, free)
    return [sys.executable, "-P", "-m", program.replace("-", "_"), *text.split("\0")]


def test_the_halves_find_each_other(tmp_path: Path) -> None:
    ports = {"5555": str(free_port()), "8001": str(free_port())}
    served: list[Process] = []
    try:
        for program, flag in (("turing-engine", "--bind"), ("turing-gateway", "--engines")):
            words = half(program, flag, ports)
            served.append(Process(words, tmp_path / f"{program}.log"))
        port = int(ports["8001"])
        gateway = Served(served[-1], port).wait_ready()
        assert gateway.server.models()[0] == "SmolLM2-135M-Instruct"
    finally:
        for process in served:
            process.close()


def test_a_gateway_renders_without_an_engine(tmp_path: Path, smollm: Served) -> None:
    port = free_port()
    places = {"build/assets": str(tmp_path / "assets"), "8002": str(port)}
    write = half("turing-engine", "--write-assets", places)
    subprocess.run(write, check=True, capture_output=True, timeout=PATIENCE_S)
    gateway = Process(half("turing-gateway", "--render-only", places), tmp_path / "gateway.log")
    try:
        server = Served(gateway, port).wait_ready().server
        assert server.models()[0] == "SmolLM2-135M-Instruct"
        body = {"input": "Hello", "instructions": "Be brief."}
        urls = (f"http://127.0.0.1:{port}", smollm.url)
        alone, served = (httpx.post(f"{url}/v1/responses/render", json=body) for url in urls)
        assert alone.json()["count"] > 2
        assert alone.json() == served.json()
        refused = httpx.post(f"http://127.0.0.1:{port}/v1/responses", json=body)
        assert refused.status_code == 503
    finally:
        gateway.close()
