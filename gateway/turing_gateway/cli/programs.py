"""The command lines of the processes that ``turing`` starts."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from turing_gateway.cli.options import ENGINE, GATEWAY, argv
from turing_gateway.launch import Program

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module of this installation, whatever lies in the working directory."""


def engine_programs(params: Mapping[str, Any], folder: str, replicas: int) -> dict[str, Program]:
    """Return the engines to start, by the address each binds in the private ``folder``."""
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException(
            "an engine needs more packages here: pip install 'turing-engine[engine]'"
        )
    engines: dict[str, Program] = {}
    for index in range(replicas):
        name, bind = f"e{index}", f"ipc://{folder}/e{index}"
        flags = ["--bind", bind, "--name", name, "--exit-with-parent", *argv(params, ENGINE)]
        engines[bind] = Program(name, (*PYTHON, "turing_engine", *flags))
    return engines


def gateway_program(params: Mapping[str, Any], engines: Sequence[str]) -> Program:
    """Return the gateway to start in front of ``engines``."""
    flags = ["--engines", ",".join(engines), "--exit-with-parent", *argv(params, GATEWAY)]
    return Program("gateway", (*PYTHON, "turing_gateway", *flags))
