"""Named factories: by decorator, by path, by installed plug-in."""

import importlib.metadata
from collections import OrderedDict

import pytest

from turing_protocol.registry import Registry


def test_a_decorated_factory_is_made_by_name() -> None:
    shapes: Registry[str] = Registry("shape")

    @shapes.add("square")
    def square(side: int, *, unit: str = "cm") -> str:
        return f"{side}x{side} {unit}"

    assert shapes.make("square", 2, unit="m") == "2x2 m"
    assert shapes.get("square") is square


def test_a_path_is_imported_at_first_use() -> None:
    maps: Registry[dict[str, int]] = Registry("map")
    maps.add_path("ordered", "collections:OrderedDict")
    maps.add_path("broken", "no_such_module:Thing")
    assert maps.names() == ["broken", "ordered"]
    assert maps.get("ordered") is OrderedDict
    assert maps.make("ordered", a=1) == {"a": 1}
    with pytest.raises(ModuleNotFoundError):
        maps.get("broken")


def test_an_unknown_name_lists_the_known_ones() -> None:
    maps: Registry[dict[str, int]] = Registry("map")
    with pytest.raises(KeyError, match="no map called 'b'; known: none"):
        maps.get("b")
    maps.add_path("ordered", "collections:OrderedDict")
    with pytest.raises(KeyError, match="known: ordered"):
        maps.get("b")


def test_another_distribution_can_add_a_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("counter", "collections:Counter", "turing.map")

    def installed(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [entry] if group == "turing.map" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", installed)
    maps: Registry[dict[str, int]] = Registry("map")
    assert maps.names() == ["counter"]
    assert maps.make("counter", "aab") == {"a": 2, "b": 1}
    assert Registry[object]("other").names() == []


def test_our_own_factory_wins_over_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", "collections:Counter", "turing.map")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
    maps: Registry[dict[str, int]] = Registry("map")
    maps.add("mine")(dict)
    assert maps.get("mine") is dict
