"""The limits on size and the bans that keep the code readable."""

import ast
import statistics
from graphlib import TopologicalSorter
from pathlib import Path

from shape.tree import (
    functions,
    imports,
    lines,
    modules,
    native_files,
    parsed,
    python_files,
    where,
)

MAX_FILE = 600
MAX_FUNCTION = 80
LONG_FUNCTION = 40
LONG_SHARE = 0.06
MEDIAN_FUNCTION = 8

PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
PICKLING_CALLS = {"send_pyobj", "recv_pyobj"}
EVALUATING_CALLS = {"eval", "exec"}


def _calls(path: Path, names: set[str]) -> list[str]:
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            direct = isinstance(node.func, ast.Name) or name in PICKLING_CALLS
            if name in names and direct:
                found.append(where(path, node))
    return found


def test_no_file_is_longer_than_600_lines() -> None:
    counted = {
        where(path): len(path.read_text().splitlines()) for path in python_files() + native_files()
    }
    assert {name: count for name, count in counted.items() if count > MAX_FILE} == {}


def test_no_function_is_longer_than_80_lines() -> None:
    long = {
        f"{where(path, function)} {function.name}": lines(function)
        for path in python_files()
        for function in functions(path)
        if lines(function) > MAX_FUNCTION
    }
    assert long == {}


def test_functions_are_short() -> None:
    counted = {
        f"{where(path, function)} {function.name}": lines(function)
        for path in modules().values()
        for function in functions(path)
    }
    long = {name: count for name, count in counted.items() if count > LONG_FUNCTION}
    assert len(long) <= LONG_SHARE * len(counted), long
    assert statistics.median(counted.values()) <= MEDIAN_FUNCTION


def test_imports_have_no_cycle() -> None:
    known = modules()
    graph = {
        name: {target for target in imports(parsed(path)) if target in known and target != name}
        for name, path in known.items()
    }
    TopologicalSorter(graph).prepare()


def test_our_modules_are_imported_at_the_top() -> None:
    inner = [
        f"{where(path, function)} {target}"
        for path in modules().values()
        for function in functions(path)
        for target in imports(function)
        if target.split(".")[0].startswith("turing_")
    ]
    assert inner == []


def test_only_entry_points_read_the_environment() -> None:
    reading = []
    for path in modules().values():
        for node in ast.walk(parsed(path)):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Attribute) and name in {"environ", "environb", "getenv"}:
                reading.append(where(path, node))
        if {"os.environ", "os.environb", "os.getenv"} & set(imports(parsed(path))):
            reading.append(where(path))
    assert {place for place in reading if "main.py" not in place} == set()


def test_no_class_is_a_mixin() -> None:
    mixins = [
        f"{where(path, node)} {node.name}"
        for path in python_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower()
    ]
    assert mixins == []


def test_nothing_is_pickled_or_evaluated() -> None:
    importing = [
        where(path)
        for path in python_files()
        if PICKLING & {name.split(".")[0] for name in imports(parsed(path))}
    ]
    calling = [
        place
        for path in modules().values()
        for place in _calls(path, PICKLING_CALLS | EVALUATING_CALLS)
    ]
    assert importing + calling == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [where(path) for path in python_files() if not ast.get_docstring(parsed(path))]
    assert silent == []
