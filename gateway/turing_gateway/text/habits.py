"""How one model reasons and calls tools, and what that means for a call and its answer."""

from collections.abc import Sequence

from msgspec.structs import replace

from turing_gateway.call import Call, Tool
from turing_gateway.text import grammar
from turing_gateway.text.answer import Reading
from turing_gateway.text.reasoning import budget_of, find_tags, split_history
from turing_gateway.text.template import ChatTemplate
from turing_gateway.text.tokenizer import Tokenizer
from turing_gateway.text.tools.dialect import find_dialect
from turing_gateway.text.tools.generic import with_tools
from turing_gateway.text.tools.objects import HERMES, hermes
from turing_gateway.text.tools.scanner import Scanner
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

_TAIL = 32
"""Last tokens of a prompt, among which a tag that opens the reasoning is looked for."""


class Habits:
    """What ``template`` (with its ``source``) and ``tokenizer`` tell of a chat model.

    Tools are shown by the template only if it also teaches a known way to call them. All answers of
    raw prompts are text.
    """

    def __init__(self, template: ChatTemplate, source: str, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self.tags = find_tags(source, tokenizer.added)
        """The tags around reasoning; ``None`` for a model that does not reason."""
        native = find_dialect(source) if template.takes_tools else None
        self._native = native is not None
        self._dialect = native or hermes()
        self._special = tokenizer.special_ids((*self._dialect.markers, *(self.tags or ())))
        self._end_ids = self._ids(self.tags.end) if self.tags else []

    def prepare(self, call: Call) -> Call:
        """Return the messages and tools that the template is to be given."""
        messages, tools = list(call.messages), call.tools
        if self.tags:
            messages = split_history(messages, self.tags)
        if not self._native:
            takes_system = self._template.takes_system
            messages, tools = with_tools(messages, tools, takes_system=takes_system), ()
        return replace(call, messages=tuple(messages), tools=tools)

    def finish_prompt(self, call: Call, prompt: list[int]) -> list[int]:
        """Return ``prompt`` with the reasoning ended that it opens and the call does not want."""
        unwanted = budget_of(call) == 0 and self._inside(call, prompt)
        return prompt + self._end_ids if unwanted else prompt

    def constrained(self, call: Call, prompt: Sequence[int]) -> Call:
        """Return ``call`` with the grammar of its whole answer as ``format``, if it has one."""
        lark = grammar.Lark(self._special)
        called = self._calls(call, lark)
        inside = self._inside(call, prompt)
        thinks = self.tags is not None and (inside or budget_of(call) != 0)
        if called is None and (call.format is None or not thinks):
            return call
        body = called or _answer(call)
        if thinks and self.tags:
            body = f"{grammar.thinking(lark, self.tags, inside=inside)} {body}"
        strict = call.tool_choice.forced or (call.format is not None and call.format.strict)
        # No engine knows how to end free reasoning in time, so it would allow none.
        strict = strict and not thinks
        return replace(
            call,
            format=Constraint("grammar", lark.text(body), strict),
            format_field="tools" if called and call.format is None else call.format_field,
        )

    def reading(self, call: Call, prompt: Sequence[int]) -> Reading:
        """Return how the answer is to be read."""
        return Reading(
            tags=self.tags,
            inside=self._inside(call, prompt),
            budget=budget_of(call),
            end_ids=tuple(self._end_ids),
            visible=frozenset(self._special.values()),
            forced=bool(callable_tools(call)) and call.tool_choice.forced,
            parallel=call.tool_choice.parallel,
        )

    def scanner(self, call: Call) -> Scanner | None:
        """Return what finds the calls in the answer; ``None`` where there can be none."""
        tools = callable_tools(call)
        if not tools:
            return None
        unforced = self._dialect.syntax is not None or not call.tool_choice.forced
        dialect = self._dialect if unforced else hermes()
        return dialect.reader([tool.name for tool in tools])

    def _calls(self, call: Call, lark: grammar.Lark) -> str | None:
        """Return the expression of an answer that may call tools; ``None`` if it cannot or is free.

        Where tools need not be called, the arguments of strict ones alone are worth a grammar.
        """
        tools, choice = callable_tools(call), call.tool_choice
        if not tools:
            return None
        syntax = self._dialect.syntax
        if choice.forced:
            wanted = [tool for tool in tools if choice.mode != "named" or tool.name == choice.name]
            # A model that was not taught to call tools does not know when it has called enough.
            many = choice.parallel and choice.mode != "named" and self._native
            return grammar.calls(lark, syntax or HERMES, wanted, many=many)
        if call.format is not None:
            if syntax is None:
                raise _not_together(call, "the way in which this model calls tools")
            called = grammar.calls(lark, syntax, tools, many=choice.parallel)
            return f"({called} | {_answer(call)})"
        if syntax is not None and any(tool.strict for tool in tools):
            return grammar.text_or_calls(lark, syntax, tools, many=choice.parallel)
        return None

    def _inside(self, call: Call, prompt: Sequence[int]) -> bool:
        """Return whether ``prompt`` ends within the reasoning."""
        if self.tags is None:
            return False
        if call.template.continue_final_message:
            content = call.messages[-1].content
            text = content if isinstance(content, str) else "".join(p.text for p in content or ())
            return text.rfind(self.tags.start) > text.rfind(self.tags.end)
        tail = self._tokenizer.decode(prompt[-_TAIL:], skip_special=False)
        return tail.rstrip().endswith(self.tags.start)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False, parse_special=True)


def callable_tools(call: Call) -> tuple[Tool, ...]:
    """Return the tools that may be called. All are shown, so that a choice keeps the prefix."""
    return () if call.tool_choice.mode == "none" else call.tools


def _answer(call: Call) -> str:
    body = grammar.answer(call.format) if call.format else None
    if body is None:
        raise _not_together(call, "tools or reasoning")
    return body


def _not_together(call: Call, other: str) -> TuringError:
    words = f"{call.format_field}: it cannot be combined with {other}"
    return TuringError(Code.UNSUPPORTED, words, param=call.format_field)
