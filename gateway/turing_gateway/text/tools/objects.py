"""Calls written as JSON objects: Hermes' and Qwen's between tags, Llama 3's as the whole answer."""

from collections.abc import Collection

from turing_gateway.text.tools.dialect import Dialect, Syntax
from turing_gateway.text.tools.scanner import Scanner


class ObjectCalls(Scanner):
    """Reads ``start {"name": …, "arguments": {…}} end``, several in a row or in a list.

    ``end`` may be empty, and models leave it out. ``bare``: an object at the beginning of the
    answer is a call without ``start`` if it names a tool.
    """

    def __init__(
        self, names: Collection[str], start: str, end: str = "", *, bare: bool = False
    ) -> None:
        super().__init__(names)
        self._open_tag, self._close_tag, self._bare = start, end, bare

    def _start(self) -> bool:
        self._state = self._expect_bare if self._bare else self._seek
        return True

    def _expect_bare(self) -> bool:
        self._begin(tagged=False)
        self._state = self._first
        return True

    def _first(self) -> bool:
        if not self._skip_space():
            return False
        if self._take_tag(self._open_tag):
            self._tagged = True
            self._state = self._body
        elif self._may_follow(self._open_tag):
            return False
        else:
            self._state = self._object
        return True

    def _seek(self) -> bool:
        if not self._text_until(self._open_tag):
            return False
        self._begin(tagged=True)
        self._take(len(self._open_tag))
        self._state = self._body
        return True

    def _body(self) -> bool:
        if not self._skip_space():
            return False
        if self._text[self._at] == "[":
            self._take(1)
        else:
            self._state = self._object
        return True

    def _object(self) -> bool:
        verdict = self._read_object()
        if verdict is None:
            return False
        self._state = self._behind if verdict else self._seek
        return True

    def _behind(self) -> bool:
        """Between a call and what ends it or separates it from the next."""
        if not self._skip_space():
            return False
        if self._close_tag and self._take_tag(self._close_tag):
            self._state = self._between
        elif self._text[self._at] in ",;":
            self._take(1)
            self._begin(tagged=self._tagged)
            self._state = self._body
        elif self._text[self._at] == "]":
            self._take(1)
        elif self._close_tag and self._may_follow(self._close_tag):
            return False
        else:
            self._state = self._between
        return True

    def _between(self) -> bool:
        """Behind a call: white space before another one is not shown."""
        if not self._skip_space() or (
            self._rest < len(self._open_tag) and self._may_follow(self._open_tag)
        ):
            return False
        self._state = self._seek
        return True


HERMES = Syntax(
    call='<tool_call>\n{"name": "{name}", "arguments": ',
    end_call="}\n</tool_call>",
    between="\n",
    tag="<tool_call>",
)


def hermes() -> Dialect:
    """Hermes, Qwen 2.5 and 3, and what is taught to models that know no tools."""
    return Dialect(
        detects=_is_hermes,
        reader=lambda names: ObjectCalls(names, "<tool_call>", "</tool_call>"),
        syntax=HERMES,
        markers=("<tool_call>", "</tool_call>"),
    )


def llama() -> Dialect:
    """Llama 3.1 to 3.3: the answer is the call, and there is one."""
    return Dialect(
        detects=lambda template: "<|python_tag|>" in template and '"parameters": ' in template,
        reader=lambda names: ObjectCalls(names, "<|python_tag|>", bare=True),
        syntax=Syntax(
            call='{"name": "{name}", "parameters": ',
            end_call="}",
            many=False,
            plain=r"([^\s{](?s:.*))?",
        ),
        markers=("<|python_tag|>",),
    )


def _is_hermes(template: str) -> bool:
    # The same tag is used with XML inside: <function=…> by Qwen3-Coder, <arg_key> by GLM.
    return "<tool_call>" in template and not any(
        other in template for other in ("<function=", "<arg_key>")
    )
