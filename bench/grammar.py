"""What structured output costs: compile times, masks and bookkeeping per token, and neighbours.

Answers are random legal tokens over the vocabulary of the default model, so masks are computed in
many states. Times are of one thread; the share of steps is measured with the native runner.

    python -m bench.grammar >bench/results/grammar.json
"""

import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.load import percentile
from turing_engine.assets import Assets, load_assets
from turing_engine.grammar.compiler import Compiler
from turing_engine.grammar.matcher import Matcher
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.locate import Located, locate
from turing_engine.plan.grammar import Verdict
from turing_engine.plan.plan import Chunk, Plan, Start
from turing_engine.plan.sequence import Sequence
from turing_engine.run.masks import Masks, Words, allowed, make_words
from turing_engine.run.native import NativeRunner
from turing_engine.run.runner import RunnerSpec
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Constraint, Sampling

ANSWERS = 12
MAX_TOKENS = 200
ROWS = 8
STEPS = 60


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


TEXT: dict[str, Any] = {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": _object({"name": TEXT, "age": {"type": "integer"}, "member": {"type": "boolean"}}),
    "enum": _object({"color": {"enum": ["red", "green", "blue"]}, "level": {"const": 1}}),
    "nested": _object({"user": _object({"name": TEXT, "address": _object({"city": TEXT})})}),
    "union": _object({"shape": {"anyOf": [_object({"r": {"type": "number"}}), {"type": "null"}]}}),
    "recursive": {
        "$defs": {"node": _object({"v": TEXT, "kids": {"items": {"$ref": "#/$defs/node"}}})},
        "$ref": "#/$defs/node",
    },
    "pattern": _object({"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}}),
    "formats": _object({f: {"type": "string", "format": f} for f in ("date-time", "uuid", "ipv4")}),
    "optional": _object({f"key{at}": {"type": "string"} for at in range(20)}, []),
}


def _micros(samples: list[float]) -> dict[str, float]:
    return {f"p{at}": round(percentile(samples, at / 100) or 0, 1) for at in (50, 90, 99)}


def _timed(samples: list[float], work: Callable[..., Any], *arguments: Any) -> Any:
    began = time.perf_counter()
    result = work(*arguments)
    samples.append(round((time.perf_counter() - began) * 1e6, 2))
    return result


def _sequence(sampling: Sampling, prompt: list[int]) -> Sequence:
    return Sequence(
        owner=(b"", 0),
        tokens=list(prompt),
        prompt_len=len(prompt),
        sampling=sampling,
        stop_ids=frozenset(),
        limit=len(prompt) + sampling.max_tokens,
        root=b"",
    )


class _Costs:
    """Times of masks and verdicts, in microseconds, over random answers."""

    def __init__(self, vocab_size: int) -> None:
        self.masks: list[float] = []
        self.verdicts: list[float] = []
        self._words: Words = make_words(1, vocab_size)
        self._vocab_size = vocab_size

    def answer(self, matcher: Matcher, seed: int) -> None:
        """Draw one answer."""
        source, left = random.Random(seed), MAX_TOKENS
        verdict = Verdict.GO
        while left and verdict in (Verdict.GO, Verdict.RETRY):
            _timed(self.masks, matcher.mask, self._words[0].data, left)
            legal = allowed(self._words[0], self._vocab_size).nonzero()[0]
            token = int(legal[source.randrange(len(legal))])
            verdict = _timed(self.verdicts, matcher.accept, token, left - 1)
            left -= verdict is not Verdict.RETRY


def costs(vocabulary: Vocabulary, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the times of one schema: to compile and search a short answer, and per token."""
    constraint = Constraint("json_schema", json.dumps(schema), strict=True)
    compiled: list[float] = []
    for _ in range(3):
        _timed(compiled, Compiler(vocabulary).compile, constraint)
    compiler, found = Compiler(vocabulary), _Costs(vocabulary.size)
    for seed in range(ANSWERS):
        sampling = Sampling(max_tokens=MAX_TOKENS)
        found.answer(compiler.matcher(constraint, _sequence(sampling, [1])), seed)
    return {
        "compile_ms": round(min(compiled) / 1000, 2),
        "mask_us": _micros(found.masks),
        "accept_us": _micros(found.verdicts),
        "tokens": len(found.masks),
    }


def neighbours(located: Located, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return how long a decode step of ``ROWS`` rows takes, with none and with one constrained."""
    spec = RunnerSpec(
        model=str(located.path),
        pages=2 * ROWS,
        kv_bytes=0,
        max_running=ROWS,
        max_step_tokens=512,
        context=2 * PAGE,
    )
    runner = NativeRunner(spec)
    text = json.dumps({"type": "array", "items": {"type": "string"}, "minItems": 99})
    compiler = Compiler(vocabulary)
    sampling = Sampling(max_tokens=MAX_TOKENS, temperature=1.0, seed=1)
    matcher = compiler.matcher(Constraint("json_schema", text), _sequence(sampling, [1]))
    words, times = make_words(ROWS, vocabulary.size), {"free": list[float](), "one": list[float]()}
    verdicts: list[float] = []
    starts = [Start(slot, sampling, [1], [], []) for slot in range(ROWS)]
    for step in range(STEPS):
        ids = vocabulary.ids(b" a")[:1]
        chunks = [Chunk(s, step, ids, [2 * s, 2 * s + 1], True) for s in range(ROWS)]
        for kind, masks in (("free", None), ("one", Masks(words, [(0, matcher, MAX_TOKENS)]))):
            plan = Plan(step, chunks, starts, [])
            result = _timed(times[kind], runner.run, plan, masks)
            starts = []
        token = result.rows[0].ids[0]
        _timed(verdicts, matcher.accept, token, MAX_TOKENS)
        times["one"][-1] += verdicts[-1]
    runner.close()
    free, one = statistics.median(times["free"][5:]), statistics.median(times["one"][5:])
    return {
        "step_us": round(free),
        "step_with_one_us": round(one),
        "share": round(one / free - 1, 4),
    }


def measure(located: Located, assets: Assets) -> dict[str, Any]:
    """Return all numbers."""
    text = assets.files["tokenizer.json"].decode()
    began = time.perf_counter()
    vocabulary = Vocabulary(text, assets.info.vocab_size, assets.info.eos_ids)
    loaded = time.perf_counter() - began
    return {
        "machine": platform.processor() or platform.machine(),
        "vocabulary": vocabulary.size,
        "vocabulary_ms": round(loaded * 1000, 1),
        "schemas": {name: costs(vocabulary, schema) for name, schema in SCHEMAS.items()},
        "neighbours": neighbours(located, vocabulary),
    }


def main() -> int:
    """Print the numbers of the default model as JSON."""
    located = locate(None, hf_home=None)
    sys.stdout.write(json.dumps(measure(located, load_assets(located)), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
