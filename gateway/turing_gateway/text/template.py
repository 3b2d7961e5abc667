"""Chat templates: messages to one prompt text, as transformers renders it, within limits.

The sandbox, its filters and its functions are those that templates on the Hugging Face hub are
written for (``transformers.utils.chat_template_utils``).
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from turing_gateway.call import Call, Message, Part, Tool, ToolCall
from turing_gateway.text.control import MARK, unmark
from turing_protocol.errors import Code, TuringError

Json = dict[str, Any]
Mark = Callable[[str], str]

MAX_CHARS: Final = 8 << 20
MAX_SECONDS: Final = 10.0

_ROLES = ("system", "user", "assistant", "tool", "developer", "function")
_CUT, _CUT_SPACED = "\ufdd4", "\ufdd4 "
"""Put behind the message to continue, to find its end again in the prompt."""
_TICK = "_turing_tick"
_PROBE = "Xq7probe"
_NON_ASCII = re.compile(r"[^\x00-\x7f]")


class ChatTemplate:
    """One compiled template and what it can take, found out by rendering small conversations.

    ``special_tokens`` are texts of ``bos_token``, ``eos_token`` and so on. A template that does not
    compile is ``Code.INVALID`` on ``chat_template``. Safe to call from several threads.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str | None],
        *,
        max_chars: int = MAX_CHARS,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._template = _compile(source)
        self._specials = {key: text for key, text in special_tokens.items() if text is not None}
        self._max_chars, self._max_seconds = max_chars, max_seconds
        self._developer = "developer" in source
        self._takes_text, self._takes_parts = self._probe_content()
        self.takes_tools = self._probe_tools()
        """Whether the template shows tools to the model at all."""
        self.takes_system = self._probe_system()
        """Whether a conversation may begin with a system turn."""
        long_id = self._probe_call({}, "call_" + 24 * "0")
        self._short_ids = long_id is None and self._probe_call({}) is not None
        self._arguments_as_text = self._probe_arguments_as_text()

    def render(self, call: Call, mark: Mark = str) -> str:
        """Return the prompt of ``call.messages``.

        ``mark`` is applied to every string that a user wrote; see ``turing_gateway.text.control``.
        What the template refuses or cannot do is ``Code.INVALID`` on ``messages``.
        """
        messages = [self._message(i, message, mark) for i, message in enumerate(call.messages)]
        continued = call.template.continue_final_message
        if continued:
            _append_cut(messages)
        variables = {
            **_options(call),
            **_marked(self._client_options(call), mark),
            "messages": messages,
            "tools": [_marked(_tool(tool), mark) for tool in call.tools] or None,
            "add_generation_prompt": call.template.add_generation_prompt and not continued,
        }
        prompt = self._run(variables)
        return _cut(prompt) if continued else prompt

    def _client_options(self, call: Call) -> Json:
        reserved = {"messages", "tools", "add_generation_prompt", _TICK, *self._specials}
        taken = reserved & call.template.kwargs.keys()
        if taken:
            name = min(taken)
            raise TuringError(
                Code.INVALID,
                f"{name} is set by the server and cannot be given here",
                param=f"chat_template_kwargs.{name}",
            )
        return call.template.kwargs

    def _run(self, variables: Json) -> str:
        try:
            return "".join(self._pieces(variables))
        except _Refused as refusal:
            raise _invalid(unmark(str(refusal))) from None
        except Exception as error:  # a template may raise whatever Python can
            what = unmark(f"{type(error).__name__}: {error}")
            raise _invalid(f"the chat template cannot render these messages: {what}") from None

    def _pieces(self, variables: Json) -> Iterator[str]:
        size = 0
        tick = _Deadline(self._max_seconds)
        for piece in self._template.generate({**self._specials, **variables, _TICK: tick}):
            tick()
            size += len(piece)
            if size > self._max_chars:
                raise _Refused(f"the prompt is longer than {self._max_chars} characters")
            yield piece

    # Messages as templates know them

    def _message(self, index: int, message: Message, mark: Mark) -> Json:
        reasoning = None if message.reasoning is None else mark(message.reasoning)
        answered = message.tool_call_id
        fields: Json = {
            "role": self._role(message.role, mark),
            "content": self._content(index, message, mark),
            "name": None if message.name is None else mark(message.name),
            "reasoning_content": reasoning,
            "reasoning": reasoning,
            "thinking": reasoning,
            "tool_calls": [self._tool_call(index, call, mark) for call in message.tool_calls],
            "tool_call_id": None if answered is None else mark(self._call_id(answered)),
        }
        return {key: value for key, value in fields.items() if value is not None and value != []}

    def _role(self, role: str, mark: Mark) -> str:
        if role == "developer" and not self._developer:
            return "system"
        # A template may build control tokens from the role, so an unknown one is always marked.
        return role if role in _ROLES else mark(role[:1]) + MARK + mark(role[1:])

    def _content(self, index: int, message: Message, mark: Mark) -> str | list[Json] | None:
        content = message.content
        if content is None:
            return None
        parts = [Part("text", content)] if isinstance(content, str) else content
        for part in parts:
            if part.kind != "text":
                raise TuringError(
                    Code.UNSUPPORTED,
                    f"content of type {part.kind!r} is not supported: this server takes text",
                    param=f"messages.{index}.content",
                )
        as_text = self._takes_text if isinstance(content, str) else not self._takes_parts
        if as_text:
            return mark("\n".join(part.text for part in parts))
        return [{"type": "text", "text": mark(part.text)} for part in parts]

    def _tool_call(self, index: int, call: ToolCall, mark: Mark) -> Json:
        arguments: Any = call.arguments
        if not self._arguments_as_text:
            arguments = _parse_arguments(call.arguments, f"messages.{index}.tool_calls")
        function = {"name": call.name, "arguments": arguments}
        identity = self._call_id(call.id)
        marked: Json = _marked({"id": identity, "type": "function", "function": function}, mark)
        return marked

    def _call_id(self, given: str) -> str:
        """Return the id as the template takes it: Mistral's want nine letters or digits."""
        if not self._short_ids or (len(given) == 9 and given.isalnum()):
            return given
        return hashlib.sha256(given.encode()).hexdigest()[:9]

    # What the template can take

    def _probe(self, messages: list[Json], **variables: Any) -> str | None:
        base = {"messages": messages, "tools": None, "add_generation_prompt": False}
        try:
            return self._run({**base, **variables})
        except TuringError:
            return None

    def _probe_content(self) -> tuple[bool, bool]:
        """Return whether content may be text, and whether it may be a list of text parts."""
        parts = [{"type": "text", "text": _PROBE}]
        with_text = self._probe([{"role": "user", "content": _PROBE}]) or ""
        with_parts = self._probe([{"role": "user", "content": parts}]) or ""
        # A template that prints a list whole would show quotes, so the two must be equal.
        only_parts = _PROBE not in with_text and _PROBE in with_parts
        return not only_parts, only_parts or (_PROBE in with_text and with_text == with_parts)

    def _probe_tools(self) -> bool:
        messages = [{"role": "user", "content": self._probe_text("Hi")}]
        tool = _tool(Tool(name=_PROBE, description=_PROBE))
        return _PROBE in (self._probe(messages, tools=[tool]) or "")

    def _probe_system(self) -> bool:
        system = {"role": "system", "content": self._probe_text(_PROBE)}
        hello = {"role": "user", "content": self._probe_text("Hi")}
        return _PROBE in (self._probe([system, hello]) or "")

    def _probe_arguments_as_text(self) -> bool:
        return self._probe_call({_PROBE: 1}) is None and self._probe_call("{}") is not None

    def _probe_call(self, arguments: Any, identity: str = "call00000") -> str | None:
        function = {"name": _PROBE, "arguments": arguments}
        call = {"id": identity, "type": "function", "function": function}
        hello = self._probe_text("Hi")
        return self._probe(
            [{"role": "user", "content": hello}, {"role": "assistant", "tool_calls": [call]}]
        )

    def _probe_text(self, text: str) -> str | list[Json]:
        return text if self._takes_text else [{"type": "text", "text": text}]


class _Refused(Exception):
    """The template's own refusal, or a limit; its words are for the user."""


class _Deadline:
    """Called in every loop round of a template; ends one that takes too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def __call__(self) -> None:
        if time.monotonic() > self._end:
            raise _Refused(f"rendering the chat template takes longer than {self._seconds:g} s")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here its body simply is rendered."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        tree = environment.parse(source)
        loops = [loop.body for loop in tree.find_all(jinja2.nodes.For)]
        macros = [macro.body for macro in tree.find_all(jinja2.nodes.Macro)]
        for body in (*loops, *macros):
            body.insert(0, _tick_statement())
        tree.set_environment(environment)
        return environment.from_string(tree)
    except (jinja2.TemplateError, RecursionError) as error:
        raise TuringError(
            Code.INVALID, f"the chat template does not compile: {error}", param="chat_template"
        ) from None


def _tick_statement() -> jinja2.nodes.Node:
    name = jinja2.nodes.Name(_TICK, "load")
    return jinja2.nodes.ExprStmt(jinja2.nodes.Call(name, [], [], None, None), lineno=1)


def _raise_exception(message: object) -> None:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of jinja's own filter."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _NON_ASCII.sub(_escape_char, text) if ensure_ascii else text


def _escape_char(match: re.Match[str]) -> str:
    # A mark must stay one, else nothing could take it out of the prompt again.
    return MARK if match[0] == MARK else json.dumps(match[0])[1:-1]


def _tool(tool: Tool) -> Json:
    function: Json = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _options(call: Call) -> Json:
    if not call.effort:
        return {}
    return {"reasoning_effort": call.effort, "enable_thinking": call.effort != "none"}


def _parse_arguments(text: str, param: str) -> Json:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise TuringError(
            Code.INVALID, f"arguments of a tool call are not JSON: {error}", param=param
        ) from None
    if not isinstance(arguments, dict):
        raise TuringError(
            Code.INVALID, "arguments of a tool call are not a JSON object", param=param
        )
    return arguments


def _marked(value: Any, mark: Mark) -> Any:
    """Return ``value``, any JSON, with ``mark`` applied to every string and key in it."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, dict):
        return {mark(key): _marked(item, mark) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, mark) for item in value]
    return value


def _append_cut(messages: list[Json]) -> None:
    content = messages[-1].get("content")
    if isinstance(content, list) and content:
        content[-1]["text"] += _CUT_SPACED
    elif isinstance(content, str):
        messages[-1]["content"] = content + _CUT_SPACED
    else:
        raise _invalid("the final message has no text that could be continued")


def _cut(prompt: str) -> str:
    """Cut the prompt behind the final message's text; if the template trims it, so is done here."""
    at = prompt.rfind(_CUT)
    if at < 0:
        raise _invalid("the chat template leaves out the end of the final message")
    return prompt[:at] if prompt.startswith(_CUT_SPACED, at) else prompt[:at].rstrip()


def _invalid(message: str) -> TuringError:
    return TuringError(Code.INVALID, message, param="messages")
