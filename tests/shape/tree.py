"""The project's own source files, parsed once, for the tests of its shape."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "turing_protocol": ROOT / "protocol",
    "turing_gateway": ROOT / "gateway",
    "turing_engine": ROOT / "engine",
    "turing_kernels": ROOT / "kernels",
}
NATIVE = (".cpp", ".hpp", ".h", ".cu")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, Path]:
    """Return every module of the four packages by its dotted name."""
    found: dict[str, Path] = {}
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(), str(path))


@cache
def python_files() -> list[Path]:
    """Return every Python file that is written by hand: packages, tests, benchmarks, scripts."""
    folders = [*(root / name for name, root in PACKAGES.items())]
    folders += [ROOT / "tests", ROOT / "bench", ROOT / "scripts"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def native_files() -> list[Path]:
    """Return every C++ and CUDA file that is written by hand."""
    files = (path for path in (ROOT / "kernels").rglob("*") if path.suffix in NATIVE)
    return sorted(path for path in files if "vendor" not in path.parts)


def functions(path: Path) -> Iterator[Function]:
    """Yield every function of a file, nested ones too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, Function):
            yield node


def lines(function: Function) -> int:
    """Return how many lines a function takes, from ``def`` to its end, without its docstring."""
    assert function.end_lineno is not None
    whole = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None or first.end_lineno is None:
        return whole
    return whole - (first.end_lineno - first.lineno + 1)


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports; ``from a import b`` gives ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def where(path: Path, node: ast.stmt | ast.expr | None = None) -> str:
    """Return ``folder/file.py:line`` for a message."""
    name = str(path.relative_to(ROOT))
    return f"{name}:{node.lineno}" if node is not None else name
