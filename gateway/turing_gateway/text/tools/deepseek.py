"""DeepSeek's calls: control tokens around the name and the arguments.

V3.1 writes ``name SEP {…}``; R1 and V3 write ``function SEP name`` and fence the arguments.
"""

from collections.abc import Collection

from turing_gateway.text.pieces import held_back
from turing_gateway.text.tools.dialect import Dialect, Syntax
from turing_gateway.text.tools.scanner import Scanner

_COMMON = "<｜tool▁call"
_CALLS, _CALLS_END = _COMMON + "s▁begin｜>", _COMMON + "s▁end｜>"
_CALL, _CALL_END = _COMMON + "▁begin｜>", _COMMON + "▁end｜>"
_SEP = "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "```json", "```"
_LONGEST_NAME = 256


class DeepSeekCalls(Scanner):
    """Reads both forms, whichever comes."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._name = ""

    def _start(self) -> bool:
        if not self._text_until(_COMMON):
            return False
        self._begin(tagged=True)
        self._state = self._opening
        return True

    def _opening(self) -> bool:
        if self._take_tag(_CALLS):
            self._state = self._between
        elif self._take_tag(_CALL):
            self._expect_name()
        elif self._may_follow(_CALLS) or self._may_follow(_CALL):
            return False
        else:
            self._take(len(_COMMON))
            self._give_up()
        return True

    def _between(self) -> bool:
        if not self._skip_space():
            return False
        if self._take_tag(_CALL):
            self._expect_name()
        elif self._take_tag(_CALLS_END):
            self._give_up()
        elif self._may_follow(_CALL) or self._may_follow(_CALLS_END):
            return False
        else:
            self._give_up()
        return True

    def _expect_name(self) -> None:
        self._begin(tagged=True)
        self._name = ""
        self._state = self._header

    def _header(self) -> bool:
        found = self._name_until(_SEP)
        if len(self._name) > _LONGEST_NAME:
            self._give_up()
        elif found:
            self._take(len(_SEP))
            self._state = self._behind_separator
        else:
            return False
        return True

    def _behind_separator(self) -> bool:
        if not self._skip_space():
            return False
        if self._name == "function" and self._text[self._at] != "{":
            self._name = ""
            self._state = self._fenced_name
        else:
            self._state = self._opening_brace
        return True

    def _fenced_name(self) -> bool:
        found = self._name_until("\n")
        if len(self._name) > _LONGEST_NAME:
            self._give_up()
        elif found:
            self._state = self._opening_brace
        else:
            return False
        return True

    def _opening_brace(self) -> bool:
        if not self._skip_space():
            return False
        if self._take_tag(_FENCE):
            return True
        if self._text[self._at] == "{" and self._name.strip():
            self._commit(self._name.strip())
            self._state = self._arguments
        elif self._may_follow(_FENCE):
            return False
        else:
            self._give_up()
        return True

    def _arguments(self) -> bool:
        if not self._read_arguments():
            return False
        self._state = self._behind_arguments
        return True

    def _behind_arguments(self) -> bool:
        if not self._skip_space():
            return False
        if self._take_tag(_FENCE_END):
            return True
        if self._take_tag(_CALL_END):
            self._state = self._between
        elif self._may_follow(_FENCE_END) or self._may_follow(_CALL_END):
            return False
        else:
            self._state = self._between
        return True

    def _name_until(self, tag: str) -> bool:
        """Read a name; true with the cursor at ``tag``, before which it ends."""
        at = self._text.find(tag, self._at)
        end = at if at >= 0 else len(self._text) - held_back(self._text[self._at :], tag)
        self._name += self._take(end - self._at)
        return at >= 0

    def _give_up(self) -> None:
        self._reject()
        self._state = self._start


def deepseek() -> Dialect:
    """DeepSeek V3.1."""
    return Dialect(
        detects=lambda template: _CALL in template and _FENCE not in template,
        reader=DeepSeekCalls,
        syntax=Syntax(
            begin=_CALLS,
            call=_CALL + "{name}" + _SEP,
            end_call=_CALL_END,
            end=_CALLS_END,
            tag=_CALLS,
        ),
        markers=(_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP),
    )


def deepseek_fenced() -> Dialect:
    """DeepSeek R1 and V3."""
    return Dialect(
        detects=lambda template: _CALL in template and _FENCE in template,
        reader=DeepSeekCalls,
        syntax=Syntax(
            begin=_CALLS,
            call=f"{_CALL}function{_SEP}{{name}}\n{_FENCE}\n",
            end_call=f"\n{_FENCE_END}{_CALL_END}",
            between="\n",
            end=_CALLS_END,
            tag=_CALLS,
        ),
        markers=(_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP),
    )
