"""Questions to a server through the official SDK, reduced to what a stream and a reply share."""

from collections.abc import Iterable
from typing import Any

import msgspec
from openai import OpenAI

STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class Reply(msgspec.Struct, frozen=True):
    """Everything of an answer that a stream and a plain reply must agree on."""

    text: str
    reason: str | None
    usage: tuple[int, int, int]


def model(client: OpenAI) -> str:
    """Return the id of the served model."""
    return client.models.list().data[0].id


def chat(client: OpenAI, content: str, *, stream: bool = False, **options: Any) -> Reply:
    """Ask in a chat."""
    asked: dict[str, Any] = {
        "model": model(client),
        "messages": [{"role": "user", "content": content}],
        **options,
    }
    if not stream:
        done = client.chat.completions.create(**asked)
        return _reply([done.choices[0].message.content], done.choices[0].finish_reason, done.usage)
    chunks = list(client.chat.completions.create(**asked, **STREAM))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return _reply(
        [choice.delta.content for choice in choices],
        next(choice.finish_reason for choice in choices if choice.finish_reason),
        chunks[-1].usage,
    )


def complete(client: OpenAI, prompt: Any, *, stream: bool = False, **options: Any) -> Reply:
    """Ask for the continuation of a text or of token ids."""
    asked: dict[str, Any] = {"model": model(client), "prompt": prompt, **options}
    if not stream:
        done = client.completions.create(**asked)
        return _reply([done.choices[0].text], done.choices[0].finish_reason, done.usage)
    chunks = list(client.completions.create(**asked, **STREAM))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return _reply(
        [choice.text for choice in choices],
        next(choice.finish_reason for choice in choices if choice.finish_reason),
        chunks[-1].usage,
    )


def served_raw(client: OpenAI, prompt: str, tokens: int) -> tuple[list[int], list[int]]:
    """Return the ids of a text and of its greedy continuation."""
    reply: Any = client.completions.create(
        model=model(client),
        prompt=prompt,
        temperature=0,
        max_tokens=tokens,
        extra_body={"return_token_ids": True},
    )
    return reply.choices[0].prompt_token_ids, reply.choices[0].token_ids


def served_chat(client: OpenAI, content: str, tokens: int) -> tuple[list[int], list[int]]:
    """Return the ids of a rendered chat and of its greedy answer."""
    reply: Any = client.chat.completions.create(
        model=model(client),
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=tokens,
        extra_body={"return_token_ids": True},
    )
    return reply.prompt_token_ids, reply.choices[0].token_ids


def _reply(texts: Iterable[str | None], reason: str | None, usage: Any) -> Reply:
    counts = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    return Reply("".join(text or "" for text in texts), reason, counts)
