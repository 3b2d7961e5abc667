"""The OpenAI API through its own SDK: a stream and a plain reply are the same answer."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from e2e.asking import chat, complete, model
from e2e.processes import Served

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 40},
    "seeded": {"temperature": 1, "seed": 7, "max_tokens": 40},
    "one token": {"temperature": 0, "max_tokens": 1},
    "stopped": {"temperature": 0, "max_tokens": 200, "stop": ["e", "zz"]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_chat_streams_what_it_replies(scripted: Served, options: dict[str, Any]) -> None:
    client = scripted.client()
    plain = chat(client, "Tell me — über 日本 🙂", **options)
    assert chat(client, "Tell me — über 日本 🙂", stream=True, **options) == plain
    assert plain.text or plain.reason == "stop"


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_completion_streams_what_it_replies(scripted: Served, options: dict[str, Any]) -> None:
    client = scripted.client()
    plain = complete(client, "Once upon a time", **options)
    assert complete(client, "Once upon a time", stream=True, **options) == plain


def test_the_limit_is_exact_and_the_usage_adds_up(scripted: Served) -> None:
    reply = complete(scripted.client(), "abc", max_tokens=17, temperature=0)
    assert reply.reason == "length"
    assert reply.usage == (3, 17, 20)


def test_a_stop_string_never_shows(scripted: Served) -> None:
    client = scripted.client()
    whole = complete(client, "abc", max_tokens=100, temperature=0).text
    stop = whole[40:43]
    cut = complete(client, "abc", max_tokens=100, temperature=0, stop=stop, stream=True)
    assert cut.text == whole[: whole.index(stop)]
    assert cut.reason == "stop"


def test_seeds_decide_and_differ(scripted: Served) -> None:
    client = scripted.client()
    texts = [complete(client, "abc", seed=seed, max_tokens=30).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_thirty_two_streams_do_not_mix(scripted: Served) -> None:
    client = scripted.client()
    prompts = [f"stream number {index}" for index in range(32)]

    def ask(prompt: str) -> str:
        return complete(client, prompt, stream=True, temperature=0, max_tokens=60).text

    alone = [complete(client, prompt, temperature=0, max_tokens=60).text for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_an_unknown_model_is_the_sdks_not_found(scripted: Served) -> None:
    client = scripted.client()
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="no-such", prompt="x")
    assert caught.value.code == "model_not_found"
    assert model(client) in caught.value.message


@pytest.mark.parametrize(
    "options",
    [{"temperature": 3}, {"max_tokens": 0}, {"max_tokens": 10**9}, {"logit_bias": {"x": 1}}],
    ids=str,
)
def test_a_bad_field_is_the_sdks_bad_request(scripted: Served, options: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        chat(scripted.client(), "Hi", **options)
    assert chat(scripted.client(), "Hi", max_tokens=1).usage[1] == 1
