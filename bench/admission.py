"""Time of one admission decision with 10,000 requests booked: the gateway's and the engine's.

python -m bench.admission >bench/results/admission.json
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from turing_engine.plan.scheduler import Scheduler, SchedulerConfig
from turing_engine.plan.sequence import Sequence
from turing_protocol.admission import Room, decide
from turing_protocol.lanes import CHUNK, Lane
from turing_protocol.sampling import Sampling

BOOKED = 10_000
DECISIONS = 5_000
PROMPT = [7] * 500
PAGES = 10


def _sequence(number: int) -> Sequence:
    return Sequence(
        owner=(b"bench", number),
        tokens=PROMPT,
        prompt_len=len(PROMPT),
        sampling=Sampling(max_tokens=128),
        stop_ids=frozenset(),
        limit=len(PROMPT) + 128,
        root=b"",
        lane=Lane(number % 3),
        deadline=float(number * 7919 % BOOKED + 1),
    )


def _summary(work: Callable[[int], object]) -> dict[str, float]:
    times = []
    for number in range(DECISIONS):
        began = time.perf_counter()
        work(number)
        times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    return {
        "mean_us": round(statistics.fmean(times), 2),
        "p50_us": round(times[len(times) // 2], 2),
        "p99_us": round(times[len(times) * 99 // 100], 2),
    }


def gateway() -> dict[str, float]:
    """Time the early answer."""
    room = Room(BOOKED * PAGES * 2, BOOKED * PAGES, BOOKED, 2 * BOOKED, BOOKED * 500, 300.0)
    return _summary(lambda number: decide(room, Lane(number % 3), PAGES))


def engine(booked: int) -> dict[str, float]:
    """Time the judgement, the booking and the place in the queue, behind ``booked`` others."""
    pages = (BOOKED + DECISIONS) * PAGES * 2
    scheduler = Scheduler(
        SchedulerConfig(
            pages=pages,
            max_running=32,
            max_waiting=2 * BOOKED,
            max_step_tokens=2048,
            chunk=CHUNK,
            context=4096,
        )
    )
    for number in range(booked):
        scheduler.add(_sequence(number), 0.0)
    fresh = [_sequence(booked + number) for number in range(DECISIONS)]
    return _summary(lambda number: scheduler.add(fresh[number], 0.0, 300.0))


def main() -> int:
    """Measure, and print the figures as JSON."""
    report: dict[str, Any] = {
        "command": "python -m bench.admission",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "booked": BOOKED,
        "decisions": DECISIONS,
        "gateway": gateway(),
        "engine": engine(BOOKED),
        "engine_when_empty": engine(0),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
