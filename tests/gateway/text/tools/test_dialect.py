"""Every dialect reads what it says calls look like, however the text is cut, in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tool_calls import ARGUMENTS, cuts, read, written
from turing_gateway.text.tools.dialect import TOOLS, Dialect, Syntax, find_dialect

NAMES = ("get_weather", "f")
WITH_SYNTAX = [name for name in TOOLS.names() if TOOLS.make(name).syntax is not None]


def parts_of(name: str) -> tuple[Dialect, Syntax]:
    dialect = TOOLS.make(name)
    assert dialect.syntax is not None
    return dialect, dialect.syntax


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("name", WITH_SYNTAX)
def test_a_recorded_call_cut_anywhere_is_the_same_call(name: str, arguments: str) -> None:  # F20
    dialect, syntax = parts_of(name)
    text = written(syntax, [("get_weather", arguments)])
    for parts in cuts(text):
        scanner = dialect.reader(NAMES)
        assert read(scanner, parts) == [("CALL", "get_weather"), ("ARGUMENTS", arguments)]
        assert not scanner.open


@pytest.mark.parametrize("name", [name for name in WITH_SYNTAX if parts_of(name)[1].many])
def test_several_calls_behind_some_text(name: str) -> None:
    dialect, syntax = parts_of(name)
    text = "I will look. " * bool(syntax.tag) + written(syntax, [("f", "{}"), ("g", '{"a": 1}')])
    expected = [("CALL", "f"), ("ARGUMENTS", "{}"), ("CALL", "g"), ("ARGUMENTS", '{"a": 1}')]
    for parts in cuts(text):
        assert read(dialect.reader(["f", "g"]), parts) == [
            *[("TEXT", "I will look. ")] * bool(syntax.tag),
            *expected,
        ]


@pytest.mark.parametrize("name", TOOLS.names())
@given(st.data())
def test_sizes_add_up_and_no_character_is_lost_or_held_for_ever(
    name: str, data: st.DataObject
) -> None:
    dialect = TOOLS.make(name)
    words = [*dialect.markers, '{"name": "f", "arguments": {', "}", '"', "f", "[", "(", " ", "é\n"]
    words += ["function", "```json", "\\", "]", ",", "{", ":"]
    parts = data.draw(st.lists(st.sampled_from(words), max_size=12))
    scanner = dialect.reader(["f"])
    pieces = [piece for part in parts for piece in scanner.feed(part)]
    assert sum(piece.size for piece in [*pieces, *scanner.close()]) <= len("".join(parts))
    whole = read(dialect.reader(["f"]), ["".join(parts)])
    assert read(dialect.reader(["f"]), "".join(parts)) == whole


@pytest.mark.parametrize("name", TOOLS.names())
@given(st.text())
def test_text_without_calls_is_text(name: str, text: str) -> None:
    assert "".join(shown for _, shown in read(TOOLS.make(name).reader(["f"]), text)) == text


@pytest.mark.parametrize("name", TOOLS.names())
def test_half_a_megabyte_of_separators_is_read_once(name: str) -> None:  # F91
    dialect = TOOLS.make(name)
    marker = dialect.markers[0]
    for unit in (marker + " ", marker + "{", '{"name": "', "[f(", "\\" + '"', " \n"):
        text = unit * (500_000 // len(unit))
        scanner = dialect.reader(["f"])
        shown = read(scanner, [text[at : at + 1000] for at in range(0, len(text), 1000)])
        assert sum(len(part) for _, part in shown) <= len(text)


def test_templates_are_told_apart() -> None:
    r1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    detected = {
        "mistral": "[TOOL_CALLS]{{ name }}[ARGS]{{ args }}",
        "mistral_list": "[TOOL_CALLS] [{{ calls }}]",
        "deepseek": "<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>",
        "deepseek_fenced": f"{r1}\n```json",
        "hermes": "<tool_call>{{ call | tojson }}</tool_call>",
        "llama": '<|python_tag|> {"name": "x", "parameters": {}}',
        "pythonic": "<|tool_call_start|>[f()]<|tool_call_end|>",
    }
    for name, template in detected.items():
        found = [other for other in TOOLS.names() if TOOLS.make(other).detects(template)]
        assert found == [name]
    assert find_dialect("<tool_call><function=f>") is None
    assert find_dialect("{{ messages }}") is None
