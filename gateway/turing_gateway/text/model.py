"""All that a gateway knows of one model's text: prompts to ids, ids to text and events."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from turing_gateway.call import Call
from turing_gateway.text.habits import Habits
from turing_gateway.text.stream import TextStream
from turing_gateway.text.template import ChatTemplate
from turing_gateway.text.tokenizer import Tokenizer
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo

MAX_DEPTH = 128
"""Levels of objects and lists in one schema, tool or set of template arguments."""


class TextModel:
    """Tokenizer and chat template of one model, from the files that its engine serves.

    ``files`` are ``tokenizer.json``, ``chat_template`` (empty when there is none) and
    ``special_tokens``. Pure CPU work; nothing in here changes after construction, so it may be
    called from several threads.
    """

    def __init__(self, info: ModelInfo, files: Mapping[str, bytes]) -> None:
        self.info = info
        self.tokenizer = Tokenizer(files["tokenizer.json"], info)
        specials: dict[str, str | None] = msgspec.json.decode(files["special_tokens"])
        source = files["chat_template"].decode()
        self._template = ChatTemplate(source, specials) if source else None
        self._habits = Habits(self._template, source, self.tokenizer) if self._template else None

    def render(self, call: Call) -> list[int]:
        """Return the prompt ids of ``call``.

        Text of control tokens counts as such in a raw ``prompt`` and never in ``messages``. What
        cannot be rendered is ``Code.INVALID`` on ``prompt`` or ``messages``.
        """
        ids = self._render_chat(call) if call.prompt is None else self._render_prompt(call)
        if not ids:
            param = "messages" if call.prompt is None else "prompt"
            raise TuringError(Code.INVALID, f"{param} must not be empty", param=param)
        return ids

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the ids of ``text``; see ``Tokenizer.encode``."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of ``ids``; an id outside the vocabulary is ``Code.INVALID``."""
        self._check_ids(ids, "tokens")
        return self.tokenizer.decode(ids, skip_special=skip_special)

    @property
    def thinks(self) -> bool:
        """Whether the model can reason before it answers."""
        return self._habits is not None and self._habits.tags is not None

    def constrained(self, call: Call, prompt: Sequence[int]) -> Call:
        """Return ``call`` with the grammar of its whole answer as ``format``, if it has one.

        ``prompt`` is what ``render`` returned. What cannot be had together is refused.
        """
        if self._habits is None or call.prompt is not None:
            return call
        return self._habits.constrained(call, prompt)

    def stream(self, call: Call, choice: int = 0, *, prompt: Sequence[int] = ()) -> TextStream:
        """Return what turns the tokens of one choice of ``call`` into events."""
        if self._habits is None or call.prompt is not None:
            return TextStream(self.tokenizer, call, self.info, choice=choice)
        return TextStream(
            self.tokenizer,
            call,
            self.info,
            choice=choice,
            reading=self._habits.reading(call, prompt),
            tools=self._habits.scanner(call),
        )

    def _render_prompt(self, call: Call) -> list[int]:
        if isinstance(call.prompt, str):
            return self.encode(call.prompt, add_special=call.add_special_tokens)
        ids = list(call.prompt or ())
        self._check_ids(ids, "prompt")
        return ids

    def _render_chat(self, call: Call) -> list[int]:
        if not call.messages:
            return []
        if self._template is None or self._habits is None:
            raise TuringError(
                Code.UNSUPPORTED,
                "this model has no chat template; send a prompt to /v1/completions",
                param="messages",
            )
        prepared = self._habits.prepare(call)
        prompt = self._template.render(prepared, self.tokenizer.control.mark)
        return self._habits.finish_prompt(call, self.tokenizer.encode_marked(prompt))

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        for token in ids:
            if not 0 <= token < self.info.vocab_size:
                raise TuringError(
                    Code.INVALID, f"token {token} is not in the vocabulary", param=param
                )


def text_size(call: Call) -> int:
    """Return how many characters (or ids) rendering ``call`` has to go through, roughly.

    Objects nested deeper than ``MAX_DEPTH`` are ``INVALID``: templates and grammars recurse.
    """
    if call.prompt is not None:
        return len(call.prompt)
    return (
        sum(_size(msgspec.to_builtins(message), "messages") for message in call.messages)
        + sum(len(tool.name) + len(tool.description) for tool in call.tools)
        + sum(_size(tool.parameters, "tools") for tool in call.tools)
        + _size(call.template.kwargs, "chat_template_kwargs")
    )


def _size(value: Any, param: str) -> int:
    size = 0
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, dict):
                size += sum(map(len, item))
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            else:
                size += 1
        if not below:
            return size
        level = below
    raise TuringError(
        Code.INVALID, f"{param} is nested deeper than {MAX_DEPTH} levels", param=param
    )
