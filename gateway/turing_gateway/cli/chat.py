"""``turing chat`` and ``turing generate``: answers on a terminal."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.console import Console

from turing_gateway.call import Call, Event, Failure, Finish, Message, TextDelta, ThinkDelta
from turing_gateway.cli.client import Server, ServerError
from turing_gateway.cli.options import LOCAL, with_settings
from turing_gateway.cli.source import Remote, Source, local
from turing_gateway.fronts.terminal import Terminal
from turing_gateway.launch import StartFailed
from turing_protocol.errors import TuringError
from turing_protocol.sampling import Sampling

F = Callable[..., None]


class Answer(msgspec.Struct):
    """What ``turing generate --json`` prints."""

    model: str
    text: str
    finish_reason: str
    usage: dict[str, int]


def with_source(max_tokens: int | None) -> Callable[[F], F]:
    """Return a decorator with the options that say who answers, and how."""
    options = (
        click.option("--url", help="Ask this running server instead of starting an engine."),
        click.option("--api-key", envvar="TURING_API_KEY", help="Key for --url."),
        click.option(
            "--temperature",
            type=click.FloatRange(0, 2),
            default=0.7,
            show_default=True,
            help="0 always takes the most likely token.",
        ),
        click.option(
            "--max-tokens",
            type=click.IntRange(min=1),
            default=max_tokens,
            show_default=max_tokens is not None,
            help="Longest answer in tokens.",
        ),
        with_settings(LOCAL),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command()
@with_source(None)
@click.pass_context
def chat(context: click.Context, /, **params: Any) -> None:
    """Talk with a model.

    Ctrl-C stops an answer, /reset forgets the conversation, /quit leaves.
    """
    with answering(context.obj, params) as source:

        def ask(messages: tuple[Message, ...]) -> Generator[Event]:
            return source.ask(call(params, messages=messages))

        click.echo(source.model)
        Terminal(ask, Console(), line_reader()).run()


@click.command()
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the usage.")
@with_source(128)
@click.pass_context
def generate(context: click.Context, /, prompt: str, as_json: bool, **params: Any) -> None:
    """Continue a text as it is, without a chat template."""
    with answering(context.obj, params) as source:
        text: list[str] = []
        for event in source.ask(call(params, prompt=prompt)):
            if isinstance(event, Failure):
                raise event.error
            if isinstance(event, TextDelta | ThinkDelta):
                text.append(event.text)
                if not as_json:
                    click.echo(event.text, nl=False)
            elif isinstance(event, Finish):
                click.echo(as_answer(source.model, "".join(text), event) if as_json else "")


def call(params: dict[str, Any], **content: Any) -> Call:
    """Return the call that the options ask for."""
    sampling = Sampling(temperature=params["temperature"])
    return Call(model="", sampling=sampling, max_tokens=params["max_tokens"], **content)


def as_answer(model: str, text: str, finish: Finish) -> str:
    """Return the JSON of one answer."""
    usage = {
        "prompt_tokens": finish.prompt_tokens,
        "completion_tokens": finish.output_tokens,
        "total_tokens": finish.prompt_tokens + finish.output_tokens,
    }
    return msgspec.json.encode(Answer(model, text, finish.reason, usage)).decode()


@contextmanager
def answering(environ: dict[str, str], params: dict[str, Any]) -> Iterator[Source]:
    """Yield who answers; what goes wrong is one line and exit code 1."""
    logging.getLogger("turing_gateway").setLevel(logging.ERROR)  # links that come and go
    try:
        if params["url"]:
            yield Remote(Server(params["url"], params["api_key"]), params["model"])
        else:
            with local(params, environ) as source:
                yield source
    except (StartFailed, ServerError) as error:
        raise click.ClickException(str(error)) from None
    except TuringError as error:
        raise click.ClickException(error.message) from None


def line_reader() -> Callable[[str], str]:
    """Return what reads a line; on a terminal one with a history, as far as it is installed."""
    if not sys.stdin.isatty():
        return input
    if importlib.util.find_spec("prompt_toolkit") is not None:
        session = importlib.import_module("prompt_toolkit").PromptSession()
        read: Callable[[str], str] = session.prompt
        return read
    if importlib.util.find_spec("readline") is not None:
        importlib.import_module("readline")  # input() uses it once it is loaded
    return input
