"""Load generator for ``/v1/chat/completions`` on this machine.

Closed loop: CONCURRENCY workers, each sends its next request when the last one has ended. Output
tokens are the server's own ``usage``, never the number of chunks. Every request opens its own
connection: some servers close a kept-alive one after a stream without saying so.

    python -m bench.load --base-url http://127.0.0.1:8000 --set chat -c 8 -n 32
"""

import argparse
import asyncio
import ipaddress
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.prompts import SETS, Messages, prompts


@dataclass
class Answer:
    """What one request showed. Times are seconds; ``gaps`` lie between chunks with text."""

    ttft: float | None = None
    elapsed: float = 0.0
    gaps: list[float] = field(default_factory=list)
    output: int = 0
    prompt: int = 0
    cached: int = 0
    text: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Load:
    """One measurement: which prompts, how many at once, how much output."""

    base_url: str
    set: str = "chat"
    concurrency: int = 1
    requests: int = 8
    offset: int = 0
    max_tokens: int = 128
    model: str = "model"
    extra: dict[str, Any] = field(default_factory=dict)


def percentile(values: list[float], share: float) -> float | None:
    """Return the value below which ``share`` of ``values`` lie, linearly interpolated."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


async def _body(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    while chunked:
        size = int((await reader.readline()).split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        if not size:
            return
        yield data[:-2]
    while data := await reader.read(65536):
        yield data


async def _events(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[dict[str, Any]]:
    held = b""
    async for data in _body(reader, chunked):
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield json.loads(line[5:])


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    status = int((await reader.readline()).split()[1])
    chunked = False
    while line := (await reader.readline()).strip().lower():
        chunked = chunked or (line.startswith(b"transfer-encoding:") and b"chunked" in line)
    return status, chunked


def _request(load: Load, messages: Messages) -> bytes:
    body = {
        "model": load.model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": load.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **load.extra,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(load.base_url).netloc}\r\n"
        "Authorization: Bearer turing-local\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def _note(answer: Answer, event: dict[str, Any], start: float, last: float) -> float:
    if event.get("error"):
        answer.error = str(event["error"])[:200]
    if usage := event.get("usage"):
        answer.output = usage["completion_tokens"]
        answer.prompt = usage["prompt_tokens"]
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    choices = event.get("choices") or [{}]
    text = (choices[0].get("delta") or {}).get("content") or ""
    if not text:
        return last
    now = time.perf_counter()
    if answer.ttft is None:
        answer.ttft = now - start
    else:
        answer.gaps.append(now - last)
    answer.text += text
    return now


async def ask(load: Load, messages: Messages) -> Answer:
    """Send one request and read its stream to the end; a failure is in ``Answer.error``."""
    answer = Answer()
    url = urlsplit(load.base_url)
    start = last = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=2**20)
        try:
            writer.write(_request(load, messages))
            status, chunked = await _head(reader)
            if status != 200:
                answer.error = f"HTTP {status}: {(await reader.read(300))!r}"
            async for event in _events(reader, chunked):
                last = _note(answer, event, start, last)
        finally:
            writer.close()
    except (OSError, EOFError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.elapsed = time.perf_counter() - start
    if answer.error is None and not answer.output:
        answer.error = "the stream ended without usage"
    return answer


async def _worker(load: Load, todo: Iterator[Messages], answers: list[Answer]) -> None:
    for messages in todo:
        answers.append(await ask(load, messages))


def _milliseconds(values: list[float]) -> dict[str, float | None]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {name: percentile(values, share) for name, share in shares.items()}
    return {name: None if v is None else round(v * 1000, 2) for name, v in found.items()}


async def run(load: Load) -> dict[str, Any]:
    """Run the load and return its figures (tokens per second, percentiles in milliseconds)."""
    host = urlsplit(load.base_url).hostname or ""
    if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"{host} is not a loopback address")
    every = prompts(load.set)
    chosen = iter([every[(load.offset + i) % len(every)] for i in range(load.requests)])
    answers: list[Answer] = []
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    await asyncio.gather(*(_worker(load, chosen, answers) for _ in range(load.concurrency)))
    wall = time.perf_counter() - start
    cpu_end = resource.getrusage(resource.RUSAGE_SELF)
    good = [answer for answer in answers if answer.error is None]
    output = sum(answer.output for answer in good)
    prompt = sum(answer.prompt for answer in good)
    return {
        "set": load.set,
        "concurrency": load.concurrency,
        "requests": load.requests,
        "errors": len(answers) - len(good),
        "error_samples": sorted({a.error for a in answers if a.error})[:3],
        "wall_s": round(wall, 3),
        "out_tok_s": round(output / wall, 2),
        "out_tokens": output,
        "prompt_mean": round(prompt / max(1, len(good)), 1),
        "cached_share": round(sum(a.cached for a in good) / max(1, prompt), 4),
        "ttft_ms": _milliseconds([a.ttft for a in good if a.ttft is not None]),
        "itl_ms": _milliseconds([gap for a in good for gap in a.gaps]),
        "client_cpu_s": round(cpu_end.ru_utime + cpu_end.ru_stime - cpu.ru_utime - cpu.ru_stime, 3),
    }


def main() -> int:
    """Run one load from the command line and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--set", choices=SETS, default="chat")
    parser.add_argument("-c", "--concurrency", type=int, default=1)
    parser.add_argument("-n", "--requests", type=int, default=8)
    parser.add_argument("--offset", type=int, default=0, help="first prompt of the set")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--model", default="model")
    given = parser.parse_args()
    figures = asyncio.run(run(Load(**vars(given))))
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
