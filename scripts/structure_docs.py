"""Write docs/structure.md from the docstrings of modules: ``python -m scripts.structure_docs``."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "structure.md"

HEAD = """# Where things are

Written by `make docs`; the lists are the first lines of the files themselves.

```
 clients ──HTTP──▶ gateway (any number, stateless)          engine (any number, owns a device)
                  ┌────────────────────────────┐  DEALER   ┌──────────────────────────────────┐
                  │ fronts/  HTTP ⇄ Call/Event │ ────────▶ │ wire.py  the only socket thread  │
                  │ text/    tokens ⇄ text     │ ◀──────── │ core.py  plan → run → settle     │
                  │ fleet/   find, pick, link  │    SUB    │ plan/    pure policy             │
                  │ generate.py  one call      │ ◀──────── │ run/     Plan → tensors → Result │
                  └────────────────────────────┘   state   └──────────────────────────────────┘
```

| package | may import | never |
| --- | --- | --- |
| `turing_protocol` | the standard library, msgspec | any other of ours, zmq, torch |
| `turing_kernels` | numpy, torch, the native library | any other of ours |
| `turing_engine` | protocol, kernels | the gateway |
| `turing_engine.plan` | protocol | torch, zmq, numpy, asyncio, the rest of the engine |
| `turing_gateway` | protocol | engine, kernels, torch, transformers, numpy |
| `turing_gateway.call` | protocol | the rest of the gateway |

`make lint` checks the directions, `tests/shape/` the sizes: no file over 600 lines, no function
over 80, at most 6 % of functions over 40, no import cycle. Why it is like this: `docs/adr/`.
"""

PARTS = (
    ("Protocol: the contract between the two halves", "protocol/turing_protocol"),
    ("Gateway: HTTP in front of engines, and the command line", "gateway/turing_gateway"),
    ("Engine: one model on one device", "engine/turing_engine"),
    ("Kernels: tensor operations and the native library", "kernels/turing_kernels"),
    ("Scripts: what writes pages like this one", "scripts"),
)


def page() -> str:
    """Return the whole page."""
    sections = (f"## {title}\n\n{listing(ROOT / folder)}" for title, folder in PARTS)
    return "\n".join([HEAD, *sections])


def listing(folder: Path) -> str:
    """Return a table of the modules under ``folder`` with what each is for."""
    rows = "\n".join(_rows(folder))
    return f"| file | what it is |\n| --- | --- |\n{rows}\n"


def _rows(folder: Path) -> Iterator[str]:
    files = folder.rglob("*.py")
    for path in sorted(files, key=lambda path: (path.parent, path.name)):
        words = ast.get_docstring(ast.parse(path.read_text())) or ""
        summary = " ".join(words.split("\n\n")[0].split()).replace("|", "\\|")
        if path.name != "__init__.py":
            yield f"| `{path.relative_to(ROOT)}` | {summary} |"


if __name__ == "__main__":
    PAGE.write_text(page())
