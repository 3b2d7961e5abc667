"""Write docs/cli.md from the commands themselves: ``python -m scripts.cli_docs``."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from turing_engine.main import main as engine
from turing_gateway.cli.main import cli
from turing_gateway.main import main as gateway

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """# Commands

Written by `make docs`. A flag wins over its variable, a variable over the `--config` file (TOML,
the flags as keys), that over the default. Exit codes: 0 done, 1 failed, 2 misused.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for name, command in (("turing", cli), ("turing-gateway", gateway), ("turing-engine", engine)):
        parts += _sections(name, command)
    return "\n".join(parts)


def _sections(name: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _sections(f"{name} {child.name}", child)
        return
    yield f"## {name}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield "| flag | variable | default | meaning |\n| --- | --- | --- | --- |"
    prefix = command.context_settings.get("auto_envvar_prefix", "")
    for option in command.params:
        yield _row(option, prefix)
    yield ""


def _row(option: click.Parameter, prefix: str) -> str:
    assert isinstance(option, click.Option)
    flag = " / ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(click.Command('')))}"
    variable = option.envvar or (f"{prefix}_{option.name}".upper() if prefix else "")
    shown = option.default if isinstance(option.default, str | int | float) else None
    default = "" if shown is None or option.is_flag else f"`{shown}`"
    code = f"`{variable}`" if variable else ""
    cells = [f"`{flag}{value}`", code, default, " ".join((option.help or "").split())]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
