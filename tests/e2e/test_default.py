"""``turing serve`` without any settings: the embedded model, as a person meets it first."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e.asking import chat, complete, served_chat
from e2e.processes import Served

pytestmark = pytest.mark.model

TOKENS = 32
QUESTIONS = [
    "Hi!",
    "What is 17 + 25?",
    "Write a haiku about rain.",
    "Why is the sky blue? Answer in one sentence.",
    "¿Dónde está la biblioteca?",
    "Sum up this text: " + "The fisherman rows out to sea before dawn. " * 20,
    *(f"Tell me about the number {number}." for number in range(10)),
]


def test_it_knows_the_capital_of_france(default: Served) -> None:
    reply = complete(default.client(), "The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in reply.text


def test_an_answer_does_not_depend_on_its_company(default: Served) -> None:
    client = default.client()
    alone = [served_chat(client, question, TOKENS) for question in QUESTIONS]
    assert len({tuple(output) for _, output in alone}) > len(QUESTIONS) / 2
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = pool.map(lambda question: served_chat(client, question, TOKENS), QUESTIONS)
    assert list(together) == alone


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_a_chat_streams_what_it_replies(default: Served, question: str) -> None:
    client = default.client()
    options: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": TOKENS}
    plain = chat(client, question, **options)
    assert chat(client, question, stream=True, **options) == plain
