"""Measure servers side by side: in alternation, in one run, on the same prompts.

All servers stay up; while one is measured the others are stopped (SIGSTOP). Each round visits every
server, even rounds forwards and odd ones backwards, and takes prompts no earlier round has used, so
that caches start equal and drift of the machine hits all alike. Ratios are per round, against the
first server; their median is what counts.

    python -m bench turing llama-q4_1 --sets chat,long --concurrency 1,8,32

Servers are described in bench/servers.json; ``$NAMES`` there come from the environment.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, TextIO

from bench.load import Load, run

HERE = Path(__file__).parent
Row = dict[str, Any]


def _sessions(session: int) -> list[int]:
    """Return every process of a session: workers may have made groups of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session:
                    found.append(int(entry.name))
    return found


def _memory_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return round(total / 1024, 1)


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _prefer(pid: int, nice: int) -> None:
    """Weigh a whole session: under autogroup scheduling plain nice counts only inside one."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


class Server:
    """One server under measurement, in a session of its own."""

    def __init__(self, name: str, config: Row, log: TextIO, nice: int | None) -> None:
        self.name = name
        self.url: str = config["url"]
        self.model: str = config["model"]
        start = time.perf_counter()
        self._process = subprocess.Popen(
            shlex.split(os.path.expandvars(config["start"])),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if nice is not None:
            _prefer(self._process.pid, nice)
        self._await_ready(start + 300)
        self.ready_s = round(time.perf_counter() - start, 2)

    def _await_ready(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended with code {self._process.returncode}")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply,
            ):
                if reply.status == 200:
                    return
            time.sleep(0.02)
        raise SystemExit(f"{self.name} was not healthy in time")

    def pids(self) -> list[int]:
        """Return the processes of the server."""
        return _sessions(self._process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the server."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def measure(self, load: Load) -> Row:
        """Run one load after a short warm-up and add what the server itself used."""
        self.signal(signal.SIGCONT)
        self._await_ready(time.perf_counter() + 30)
        warm = Load(self.url, load.set, 1, 1, 500, 8, self.model)
        asyncio.run(run(warm))
        before = _cpu_seconds(self.pids())
        figures = asyncio.run(run(load))
        figures["server_cpu_s"] = round(_cpu_seconds(self.pids()) - before, 2)
        figures["pss_mib"] = _memory_mib(self.pids())
        self.signal(signal.SIGSTOP)
        return {"server": self.name, **figures}

    def stop(self) -> None:
        """End the server and whatever it started."""
        self.signal(signal.SIGCONT)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self.signal(signal.SIGKILL)
        self._process.wait()


def _cells(given: argparse.Namespace) -> list[tuple[str, int, int]]:
    """Return (set, concurrency, requests) of every cell."""
    per = {1: 4, 8: 16, 32: 64}
    levels = [int(c) for c in given.concurrency.split(",")]
    return [(name, c, per.get(c, 2 * c)) for name in given.sets.split(",") for c in levels]


def _measure_all(servers: list[Server], given: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    used: dict[str, int] = {}
    for turn in range(given.rounds):
        for name, concurrency, requests in _cells(given):
            offset = used.get(name, 0)
            used[name] = (offset + requests) % 448
            for server in servers if turn % 2 == 0 else servers[::-1]:
                load = Load(
                    server.url, name, concurrency, requests, offset, given.max_tokens, server.model
                )
                row = {"round": turn, **server.measure(load)}
                rows.append(row)
                sys.stderr.write(
                    f"round {turn} {name} x{concurrency} {server.name}: "
                    f"{row['out_tok_s']} tok/s, {row['errors']} errors\n"
                )
    return rows


def _summary(rows: list[Row], names: list[str]) -> list[Row]:
    """Return medians over rounds per cell and server, with per-round ratios to the first."""
    summary: list[Row] = []
    cells = dict.fromkeys((row["set"], row["concurrency"]) for row in rows)
    for cell in cells:
        mine = [row for row in rows if (row["set"], row["concurrency"]) == cell]
        base = {row["round"]: row["out_tok_s"] for row in mine if row["server"] == names[0]}
        for name in names:
            group = [row for row in mine if row["server"] == name]
            ratios = [base[row["round"]] / row["out_tok_s"] for row in group if row["out_tok_s"]]
            summary.append(
                {
                    "set": cell[0],
                    "concurrency": cell[1],
                    "server": name,
                    "out_tok_s": _median(group, "out_tok_s"),
                    "first_is_faster_by": round(statistics.median(ratios), 2) if ratios else None,
                    "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)] if ratios else [],
                    "ttft_p50_ms": _median([row["ttft_ms"] for row in group], "p50"),
                    "itl_p50_ms": _median([row["itl_ms"] for row in group], "p50"),
                    "itl_p99_ms": _median([row["itl_ms"] for row in group], "p99"),
                    "cached_share": _median(group, "cached_share"),
                    "pss_mib": _median(group, "pss_mib"),
                    "server_cpu_ms_per_token": round(
                        1000
                        * sum(row["server_cpu_s"] for row in group)
                        / max(1, sum(row["out_tokens"] for row in group)),
                        3,
                    ),
                    "errors": sum(row["errors"] for row in group),
                }
            )
    return summary


def _median(rows: list[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return round(statistics.median(values), 3) if values else None


def _machine() -> Row:
    text = Path("/proc/cpuinfo").read_text()
    model = next(line.split(":")[1].strip() for line in text.splitlines() if "model name" in line)
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "servers",
        nargs="*",
        default=["turing", "turing-torch"],
        help="names in servers.json; the first is the base (default: our two CPU runners)",
    )
    parser.add_argument("--sets", default="chat,long,prefix")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument(
        "--priority", type=int, help="autogroup nice for servers and, after setsid, this"
    )
    parser.add_argument("--out", type=Path, help="write rounds and summary to this JSON file")
    return parser.parse_args()


def main() -> int:
    """Start the servers, measure, print the summary, and stop what was started."""
    given = _arguments()
    known: dict[str, Row] = json.loads((HERE / "servers.json").read_text())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if given.priority is not None:
        _prefer(os.getpid(), given.priority)
    servers: list[Server] = []
    with open(os.devnull, "w") as log:
        try:
            for name in given.servers:
                servers.append(Server(name, known[name], log, given.priority))
                servers[-1].signal(signal.SIGSTOP)
            rows = _measure_all(servers, given)
        finally:
            for server in servers:
                server.stop()
    report = {
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": _machine(),
        "ready_s": {server.name: server.ready_s for server in servers},
        "summary": _summary(rows, given.servers),
        "rounds": rows,
    }
    text = json.dumps(report, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    sys.stdout.write(json.dumps(report["summary"], indent=1) + "\n")
    return 1 if any(row["errors"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
