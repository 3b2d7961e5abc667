"""``turing config``: what is set, and where it comes from."""

from typing import Any

import click
from click.core import ParameterSource

from turing_gateway.cli.options import SETTINGS, Setting, with_settings


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@with_settings(SETTINGS)
@click.pass_context
def show(context: click.Context, /, **params: Any) -> None:
    """Print every setting of a server with its value and origin."""
    rows = [(s.name, _value(s, params[s.key]), _origin(context, s)) for s in SETTINGS]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        click.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _value(setting: Setting, value: Any) -> str:
    if value is None:
        return "-"
    return "********" if setting.key == "api_key" else str(value)


def _origin(context: click.Context, setting: Setting) -> str:
    source = context.get_parameter_source(setting.key)
    if source is ParameterSource.DEFAULT and setting.default is None:
        return f"left to the {setting.to[0]}"
    return {
        ParameterSource.COMMANDLINE: "command line",
        ParameterSource.ENVIRONMENT: setting.variable,
        ParameterSource.DEFAULT_MAP: "config file",
    }.get(source or ParameterSource.DEFAULT, "default")
