"""A TOML file as the defaults of a command's options."""

import difflib
import tomllib
from pathlib import Path
from typing import Any

import click


def use_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the values in ``path`` defaults, as the callback of an eager ``--config`` option.

    Flags and variables win over them. An unknown name is an error that says the nearest one.
    """
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"cannot read --config {path}: {error}") from None
    known = [p.name for p in context.command.params if p.name and p.expose_value]
    context.default_map = {_known(name, known, path): value for name, value in values.items()}


def _known(name: str, known: list[str], path: Path) -> str:
    key = name.replace("-", "_")
    if key in known:
        return key
    near: list[Any] = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise click.UsageError(f"unknown setting {name!r} in {path}{hint}")
