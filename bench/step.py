"""Speed of the native runner's steps alone: no scheduler, no wire, no HTTP.

python -m bench.step >bench/results/step.json
python -m bench.step --priority          (weigh this session above others while measuring)
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from turing_engine.locate import locate
from turing_engine.plan.plan import Chunk, Plan, Start
from turing_engine.run.native import NativeRunner
from turing_engine.run.runner import RunnerSpec
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Sampling

GREEDY = Sampling(temperature=0)
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (256, 1024)
STEPS = 60
WARM = 5
PREFILLS = (64, 512, 2048)


def _ids(count: int, salt: int = 0) -> list[int]:
    """Return ids without a pattern, from the part of the vocabulary that holds plain words."""
    return [1000 + (at * 7919 + salt * 104_729) % 40_000 for at in range(count)]


def _pages(rows: int, tokens: int, total: int) -> list[list[int]]:
    """Return page tables that lie scattered over the pool, as they do after hours of serving."""
    each = -(-tokens // PAGE)
    order = [at * 7919 % total for at in range(rows * each)]
    return [order[row * each : (row + 1) * each] for row in range(rows)]


def decode(runner: NativeRunner, rows: int, context: int) -> dict[str, Any]:
    """Time steps of ``rows`` sequences that are ``context`` tokens long, one token each."""
    tables = _pages(rows, context + STEPS, runner.pages)
    starts = [Start(slot, GREEDY, [], [], []) for slot in range(rows)]
    tokens, times = _ids(rows), []
    for step in range(STEPS):
        chunks = [Chunk(s, context + step, [tokens[s]], tables[s], True) for s in range(rows)]
        began = time.perf_counter()
        result = runner.run(Plan(step, chunks, starts, []))
        times.append(time.perf_counter() - began)
        starts = []
        tokens = [row.ids[0] for row in result.rows]
    runner.run(Plan(STEPS, [], [], list(range(rows))))
    return {"rows": rows, "context": context, **_summary(times[WARM:], rows)}


def prefill(runner: NativeRunner, tokens: int) -> dict[str, Any]:
    """Time the prefill of one prompt in one step."""
    times = []
    for attempt in range(6):
        chunk = Chunk(0, 0, _ids(tokens, attempt), list(range(-(-tokens // PAGE))), True)
        began = time.perf_counter()
        runner.run(Plan(attempt, [chunk], [Start(0, GREEDY, [], [], [])], []))
        times.append(time.perf_counter() - began)
    runner.run(Plan(9, [], [], [0]))
    return {"tokens": tokens, **_summary(times[1:], tokens)}


def _summary(times: list[float], tokens: int) -> dict[str, float]:
    median = statistics.median(times)
    return {
        "median_ms": round(median * 1e3, 3),
        "best_ms": round(min(times) * 1e3, 3),
        "tok_s": round(tokens / median, 1),
    }


def measure(model: str, threads: int) -> dict[str, Any]:
    """Return all numbers of ``model``."""
    began = time.perf_counter()
    pages = max(ROWS) * -(-(max(CONTEXTS) + STEPS) // PAGE) + 64
    spec = RunnerSpec(
        model=model,
        pages=pages,
        kv_bytes=0,
        max_running=max(ROWS),
        max_step_tokens=max(PREFILLS),
        context=4096,
        threads=threads,
    )
    runner = NativeRunner(spec)
    loaded = time.perf_counter() - began
    report = {
        "machine": platform.processor() or platform.machine(),
        "model": Path(model).name,
        "isa": runner.isa,
        "threads": runner.threads,
        "load_s": round(loaded, 2),
        "decode": [decode(runner, rows, context) for context in CONTEXTS for rows in ROWS],
        "prefill": [prefill(runner, tokens) for tokens in PREFILLS],
    }
    runner.close()
    return report


def _raise_priority() -> None:
    """Weigh this session above others; plain nice does not count between sessions."""
    os.setsid()
    Path("/proc/self/autogroup").write_text("-20")


def main() -> int:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a GGUF file or safetensors folder; default: SmolLM2")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--priority", action="store_true")
    options = parser.parse_args()
    if options.priority:
        _raise_priority()
    model = str(locate(options.model, hf_home=None).path)
    sys.stdout.write(json.dumps(measure(model, options.threads), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
