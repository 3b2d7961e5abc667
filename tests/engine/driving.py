"""Drives a runner as a scheduler would: prefill in chunks, then one token per step and sequence."""

from collections.abc import Sequence
from itertools import count

import msgspec

from turing_engine.plan.plan import Chunk, Plan, Sampled, Start
from turing_engine.run.runner import Runner
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Sampling

GREEDY = Sampling(temperature=0.0)

_steps = count(1)


class Row(msgspec.Struct, kw_only=True):
    """One sequence that is driven: what it has, what it wants and where its keys are."""

    slot: int
    ids: list[int]
    """Prompt, then output; grows."""
    pages: list[int]
    want: int
    """Tokens to generate beyond ``output``."""
    sampling: Sampling = GREEDY
    chunk: int = 1 << 20
    computed: int = 0
    output: list[int] = msgspec.field(default_factory=list)
    """Given: tokens generated before; afterwards: all generated tokens."""
    banned: list[int] = msgspec.field(default_factory=list)
    sampled: list[Sampled] = msgspec.field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether tokens are still wanted."""
        return len(self.sampled) < self.want


def pages_for(tokens: int, first: int = 0) -> list[int]:
    """Return consecutive page ids from ``first`` on that hold ``tokens``."""
    return list(range(first, first + -(-tokens // PAGE)))


def start_of(row: Row) -> Start:
    """Return the start that gives ``row`` its slot."""
    prompt = row.ids[: len(row.ids) - len(row.output)]
    return Start(row.slot, row.sampling, prompt, list(row.output), row.banned)


def chunk_of(row: Row) -> Chunk:
    """Return the next chunk of ``row``; it samples when it reaches the end of the ids."""
    ids = row.ids[row.computed : row.computed + row.chunk]
    end = row.computed + len(ids)
    return Chunk(row.slot, row.computed, ids, row.pages, end == len(row.ids))


def step(runner: Runner, rows: Sequence[Row], starts: Sequence[Start] = ()) -> None:
    """Run one step with a chunk of each of ``rows`` and take its result in."""
    plan = Plan(next(_steps), [chunk_of(row) for row in rows], list(starts), [])
    result = runner.run(plan)
    assert result.step == plan.step
    assert len(result.rows) == len(rows)
    for row, chunk, sampled in zip(rows, plan.chunks, result.rows, strict=True):
        row.computed += len(chunk.ids)
        assert len(sampled.ids) == int(chunk.sample)
        row.ids.extend(sampled.ids)
        row.output.extend(sampled.ids)
        row.sampled.extend([sampled] if chunk.sample else [])


def drive(runner: Runner, rows: Sequence[Row]) -> list[list[int]]:
    """Start all ``rows`` at once, run them to their ends, and return each one's output."""
    starts = [start_of(row) for row in rows]
    while running := [row for row in rows if row.open]:
        step(runner, running, starts)
        starts = []
    runner.run(Plan(next(_steps), [], [], [row.slot for row in rows]))
    return [row.output for row in rows]


def generate(
    runner: Runner,
    prompt: Sequence[int],
    want: int,
    sampling: Sampling = GREEDY,
    *,
    chunk: int = 1 << 20,
) -> list[int]:
    """Return the output of one sequence that is alone in the runner."""
    pages = pages_for(len(prompt) + want)
    row = Row(slot=0, ids=list(prompt), pages=pages, want=want, sampling=sampling, chunk=chunk)
    return drive(runner, [row])[0]
