"""The command ``turing-gateway``: HTTP in front of engines, set by flags, ``TURING_*`` or TOML."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from turing_gateway import logs
from turing_gateway.app import build_app
from turing_gateway.configfile import use_config
from turing_gateway.drain import Drain
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.folder import Folder
from turing_gateway.fronts.base import View
from turing_gateway.generate import Generator
from turing_gateway.metrics import Metrics
from turing_gateway.middleware import is_loopback
from turing_gateway.server import serve
from turing_gateway.settings import GatewaySettings
from turing_gateway.text.pool import TextPool
from turing_protocol.errors import TuringError

if sys.platform == "linux":
    from uvloop import new_event_loop
else:
    from asyncio import new_event_loop

_log = logging.getLogger("turing_gateway")


def _engines(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


@click.command(context_settings={"auto_envvar_prefix": "TURING", "show_default": True})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=use_config,
    help="TOML file with any of these settings; flags and variables win over it.",
)
@click.option(
    "--engines",
    default="",
    callback=_engines,
    help="Comma list of engines: tcp://host:port, ipc://path, dns://name:port.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port; 0 = a free one.")
@click.option("--api-key", help="Bearer key that clients must send; better set as TURING_API_KEY.")
@click.option("--render-only", is_flag=True, help="Render and tokenize; generate nothing.")
@click.option(
    "--assets",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of turing-engine --write-assets; --render-only needs no --engines then.",
)
@click.option(
    "--max-body-bytes",
    type=click.IntRange(min=1024),
    default=8 << 20,
    help="Largest request body; more is answered with 413.",
)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(0),
    default=30.0,
    help="Time that running requests get after SIGTERM.",
)
@click.option(
    "--metrics-alias",
    type=click.Choice(["vllm"]),
    help="Repeat the metrics that llm-d reads under these names.",
)
@click.option("--exit-with-parent", is_flag=True, help="End when the parent process ends.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"
)
@click.option("--log-json", is_flag=True, help="One JSON object per log line.")
def main(**params: Any) -> None:
    """Serve the HTTP APIs in front of engines; exit codes: 0 done, 1 failed, 2 misused."""
    settings = GatewaySettings(**params)
    _check(settings)
    logs.configure(settings.log_level, json=settings.log_json)
    shown = {n: getattr(settings, n) for n in settings.__struct_fields__ if n != "api_key"}
    _log.info("starting with %s", shown)
    if not settings.api_key and not is_loopback(settings.host):
        _log.warning("%s is open to the network without an API key", settings.host)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            clean = runner.run(run(settings))
    except TuringError as error:
        raise click.ClickException(error.message) from None
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise click.ClickException(f"cannot listen on {where}: {error.strerror}") from None
    sys.exit(0 if clean else 1)


def _check(settings: GatewaySettings) -> None:
    if settings.assets is None:
        if not settings.engines:
            raise click.UsageError("--engines is required")
    elif settings.engines or not settings.render_only:
        raise click.UsageError("--assets goes with --render-only and without --engines")


async def run(settings: GatewaySettings) -> bool:
    """Run one gateway until it is told to stop; returns whether every request could finish."""
    drain, pool = Drain(), TextPool()
    fleet = Fleet(settings.engines)

    def views() -> Sequence[View]:
        return fleet.views

    metrics = Metrics(views, alias=settings.metrics_alias)
    catalog = fleet if settings.assets is None else Folder(settings.assets)
    # What only renders runs its calls on no engine, whichever it has the assets from.
    engines = Fleet(()) if settings.render_only else fleet
    generator = Generator(engines, pool, catalog=catalog)
    app = build_app(generator, views, metrics, settings, drain)
    await fleet.start()
    try:
        await generator.load()
        return await serve(app, settings, drain, engines.interrupt)
    finally:
        await fleet.close()
        pool.close()
