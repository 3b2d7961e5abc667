"""Entry point of ``turing``; the one place of this command that reads the environment."""

import os

import click

from turing_gateway.cli.chat import chat, generate
from turing_gateway.cli.config import config
from turing_gateway.cli.serve import serve


@click.group()
@click.version_option(package_name="turing-engine", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Turing Engine: LLM inference on your own machine."""
    context.obj = dict(os.environ)


for command in (serve, chat, generate, config):
    cli.add_command(command)


def main() -> None:
    """Run the command line; exit codes: 0 done, 1 failed, 2 misused."""
    cli(prog_name="turing")
