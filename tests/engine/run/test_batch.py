"""The layout of a step's flat batch, and what is refused before anything is computed."""

from typing import Any

import pytest
import torch

from turing_engine.plan.plan import Chunk
from turing_engine.run.batch import build_batch, check_chunks

CPU = torch.device("cpu")


def test_chunks_come_first_then_decodes_with_the_longest_first() -> None:
    chunks = [
        Chunk(0, 70, [5], [3, 1], True),
        Chunk(1, 0, [7, 8, 9], [2], True),
        Chunk(2, 500, [6], list(range(8)), True),
        Chunk(3, 64, [1, 2], [4, 5], False),
    ]
    batch = build_batch(chunks, CPU)
    assert batch.ids.tolist() == [7, 8, 9, 1, 2, 6, 5]
    assert batch.positions.tolist() == [0, 1, 2, 64, 65, 500, 70]
    assert [(span.start, span.length) for span in batch.spans] == [
        (0, 3),
        (64, 2),
        (500, 1),
        (70, 1),
    ]
    assert batch.rows.tolist() == [2, 5, 6]
    assert batch.sampled == [1, 2, 0]


GOOD: dict[str, Any] = {"slot": 1, "start": 10, "ids": [1, 2], "pages": [0], "sample": True}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slot": 4}, "slot 4 is not one of 4"),
        ({"slot": -1}, "slot -1"),
        ({"ids": []}, "a chunk of 0 at 10"),
        ({"start": -1}, "a chunk of 2 at -1"),
        ({"ids": [1, 100]}, "not in the vocabulary"),
        ({"ids": [-1, 1]}, "not in the vocabulary"),
        ({"start": 63}, "1 pages for 65 tokens"),
        ({"pages": [9]}, "a page is not one of 9"),
        ({"pages": [-1]}, "a page is not one of 9"),
    ],
)
def test_a_chunk_that_points_outside_is_refused(change: dict[str, Any], words: str) -> None:
    check_chunks([Chunk(**GOOD)], vocab_size=100, pages=9, slots=4)
    with pytest.raises(ValueError, match=words):
        check_chunks([Chunk(**GOOD | change)], vocab_size=100, pages=9, slots=4)
