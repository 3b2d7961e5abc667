"""What there is to know of one way to write tool calls, and the registry of all of them."""

from collections.abc import Callable, Collection

import msgspec

from turing_gateway.text.tools.scanner import Scanner
from turing_protocol.registry import Registry


class Syntax(msgspec.Struct, frozen=True):
    """How calls are written, for a grammar: ``begin`` (``call`` arguments ``end_call``)+ ``end``.

    ``call`` contains ``{name}``; ``between`` separates calls. Without ``many`` there can be one.
    Text goes on until ``tag``, with which calls begin; where there is no tag, an answer without
    calls matches the regular expression ``plain``.
    """

    call: str
    end_call: str = ""
    begin: str = ""
    between: str = ""
    end: str = ""
    many: bool = True
    tag: str = ""
    plain: str = ""

    def opening(self, name: str) -> str:
        """Return what stands before the arguments of the first call."""
        return self.begin + self.call.replace("{name}", name)

    def following(self, name: str) -> str:
        """Return what stands before the arguments of a later call."""
        return self.between + self.call.replace("{name}", name)


class Dialect(msgspec.Struct, frozen=True):
    """One way to write tool calls.

    ``detects`` says whether a chat template teaches it, ``reader`` makes a parser for tools of the
    given names. ``syntax`` is how calls are forced; without one that is done in Hermes' way.
    """

    detects: Callable[[str], bool]
    reader: Callable[[Collection[str]], Scanner]
    syntax: Syntax | None = None
    markers: tuple[str, ...] = ()
    """Texts that may be special tokens and yet have to reach the parser."""


TOOLS: Registry[Dialect] = Registry("tools")
"""Dialects by name; other distributions add theirs as ``turing.tools``."""

_HERE = "turing_gateway.text.tools"

TOOLS.add_path("deepseek", f"{_HERE}.deepseek:deepseek")
TOOLS.add_path("deepseek_fenced", f"{_HERE}.deepseek:deepseek_fenced")
TOOLS.add_path("hermes", f"{_HERE}.objects:hermes")
TOOLS.add_path("llama", f"{_HERE}.objects:llama")
TOOLS.add_path("mistral", f"{_HERE}.mistral:mistral")
TOOLS.add_path("mistral_list", f"{_HERE}.mistral:mistral_list")
TOOLS.add_path("pythonic", f"{_HERE}.pythonic:pythonic")


def find_dialect(template: str) -> Dialect | None:
    """Return the dialect that ``template`` teaches, if it is a known one."""
    known = [TOOLS.make(name) for name in TOOLS.names()]
    return next((dialect for dialect in known if dialect.detects(template)), None)
