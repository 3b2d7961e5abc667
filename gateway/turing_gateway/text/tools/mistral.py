"""Mistral's calls: ``[TOOL_CALLS]`` with a list of objects, or with ``name[ARGS]{…}`` each."""

import re
from collections.abc import Collection

from turing_gateway.text.pieces import held_back
from turing_gateway.text.tools.dialect import Dialect, Syntax
from turing_gateway.text.tools.jsonstream import run
from turing_gateway.text.tools.objects import ObjectCalls

_START, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_LONGEST_NAME = 256


class MistralCalls(ObjectCalls):
    """Reads both forms, whichever comes."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names, _START)
        self._name = ""

    def _body(self) -> bool:
        if not self._skip_space():
            return False
        if self._text[self._at] in "[{":
            return super()._body()
        self._name = ""
        self._state = self._in_name
        return True

    def _in_name(self) -> bool:
        self._name += self._take(run(_NAME, self._text, self._at) - self._at)
        if len(self._name) > _LONGEST_NAME:
            self._give_up()
        elif not self._rest:
            return False
        else:
            self._state = self._behind_name
        return True

    def _behind_name(self) -> bool:
        if not self._skip_space():
            return False
        if self._take_tag(_ID):
            self._state = self._in_id
        elif self._take_tag(_ARGS):
            pass
        elif self._text[self._at] == "{" and self._name:
            self._commit(self._name)
            self._state = self._arguments
        elif self._may_follow(_ID) or self._may_follow(_ARGS):
            return False
        else:
            self._give_up()
        return True

    def _in_id(self) -> bool:
        at = self._text.find(_ARGS, self._at)
        end = at if at >= 0 else len(self._text) - held_back(self._text[self._at :], _ARGS)
        self._take(end - self._at)
        if at >= 0:
            self._state = self._behind_name
        return at >= 0

    def _arguments(self) -> bool:
        if not self._read_arguments():
            return False
        self._state = self._between
        return True

    def _give_up(self) -> None:
        self._reject()
        self._state = self._seek


def mistral() -> Dialect:
    """Mistral Small 3.2, Devstral, Magistral, Ministral 3."""
    return Dialect(
        detects=lambda template: _START in template and _ARGS in template,
        reader=MistralCalls,
        syntax=Syntax(call=_START + "{name}" + _ARGS, tag=_START),
        markers=(_START, _ARGS, _ID),
    )


def mistral_list() -> Dialect:
    """Mistral 7B v0.3, Nemo, Mixtral, Mistral Large."""
    return Dialect(
        detects=lambda template: _START in template and _ARGS not in template,
        reader=MistralCalls,
        syntax=Syntax(
            begin=_START + "[",
            call='{"name": "{name}", "arguments": ',
            end_call="}",
            between=", ",
            end="]",
            tag=_START,
        ),
        markers=(_START,),
    )
