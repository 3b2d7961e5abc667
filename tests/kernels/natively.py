"""Driving the native library from tests: chunks in, tokens and logits out."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turing_kernels.native import NativeEngine, Result, Sampling, Step

Floats = NDArray[np.float32]


class Part(NamedTuple):
    """A chunk of one sequence; see ``turing_step``."""

    slot: int
    start: int
    ids: Sequence[int]
    pages: Sequence[int]
    sample: bool = True


def sampling(**fields: Any) -> Sampling:
    """Return greedy sampling without penalties, changed by ``fields``."""
    plain: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "greedy": True,
        "logprobs": -1,
    }
    return Sampling(**(plain | fields))


@contextmanager
def native_engine(model: object, **options: Any) -> Iterator[NativeEngine]:
    """Open ``model`` with small limits, changed by ``options``, and close it."""
    small: dict[str, Any] = {"slots": 8, "max_rows": 512, "pages": 64}
    engine = NativeEngine(str(model), **(small | options))
    try:
        yield engine
    finally:
        engine.close()


def run_parts(engine: NativeEngine, parts: Sequence[Part]) -> tuple[list[int], Floats]:
    """Compute one step; return a token per part (-1 without ``sample``) and the sampled logits."""
    arrays = [
        array("i", values)
        for values in (
            [part.slot for part in parts],
            [part.start for part in parts],
            [len(part.ids) for part in parts],
            [len(part.pages) for part in parts],
            [part.sample for part in parts],
            [token for part in parts for token in part.ids],
            [page for part in parts for page in part.pages],
        )
    ]
    step = Step(len(parts), *(each.buffer_info()[0] for each in arrays))
    tokens = np.zeros(len(parts), np.int32)
    logprobs = np.zeros(len(parts), np.float32)
    logits = np.zeros((sum(part.sample for part in parts), engine.vocab_size), np.float32)
    rooms = (tokens.ctypes.data, logprobs.ctypes.data, None, None, 0, logits.ctypes.data)
    engine.run(step, Result(*rooms))
    return tokens.tolist(), logits


def logits_behind(
    engine: NativeEngine, ids: Sequence[int], ends: Sequence[int], *, slot: int = 0, page0: int = 0
) -> Floats:
    """Compute ``ids`` in chunks that end at ``ends``; return the logits behind each chunk."""
    engine.start(slot, sampling())
    pages = range(page0, page0 + len(ids) // 64 + 1)
    rows, start = [], 0
    for end in ends:
        rows.append(run_parts(engine, [Part(slot, start, ids[start:end], pages)])[1][0])
        start = end
    return np.stack(rows)


def greedy(engine: NativeEngine, ids: Sequence[int], count: int, *, slot: int = 0) -> list[int]:
    """Return the greedy continuation of ``ids``."""
    engine.start(slot, sampling())
    pages = range((len(ids) + count) // 64 + 1)
    tokens: list[int] = []
    given, start = list(ids), 0
    while len(tokens) < count:
        [token], _ = run_parts(engine, [Part(slot, start, given, pages)])
        start += len(given)
        given = [token]
        tokens.append(token)
    return tokens
