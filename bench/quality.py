"""What the rounding of the native runner costs: int8 rows and bf16 pages against fp32.

Both sides compute the same text from the same weights, as the file defines them; the fp32 side is
the runner's exact mode, which tests hold to transformers. Perplexity, mean KL divergence (nats per
token) and how often the most likely token agrees.

    python -m bench.quality >bench/results/quality.json
"""

import inspect
import json
import math
import pydoc_data.topics
import sys
import textwrap
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from turing_engine.assets import load_assets
from turing_engine.locate import Located, locate
from turing_engine.run.native import native_sampling
from turing_kernels.native import NativeEngine, Result, Step
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Sampling

WINDOW = 512
WINDOWS = 10

Floats = NDArray[np.float32]


def windows(located: Located) -> list[list[int]]:
    """Return ``WINDOWS`` pieces of prose about Python and of its library's source."""
    tokenizer = Tokenizer.from_str(load_assets(located).files["tokenizer.json"].decode())
    topics: dict[str, str] = pydoc_data.topics.topics
    prose = "\n".join(topics[name] for name in sorted(topics)[:40])
    code = inspect.getsource(textwrap) + inspect.getsource(inspect)
    half = WINDOWS // 2
    found = []
    for text in (prose, code):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found += [ids[at * WINDOW : (at + 1) * WINDOW] for at in range(half)]
    return found


def logits_along(engine: NativeEngine, texts: list[list[int]]) -> Iterator[Floats]:
    """Yield the logits ``[texts, vocab]`` behind each position, all texts side by side."""
    rows, each = len(texts), WINDOW // PAGE
    for slot in range(rows):
        engine.start(slot, native_sampling(Sampling(temperature=0)))
    ones, slots = array("i", [1] * rows), array("i", range(rows))
    counts, pages = array("i", [each] * rows), array("i", range(rows * each))
    tokens, logprobs = array("i", bytes(4 * rows)), array("f", bytes(4 * rows))
    for position in range(WINDOW):
        starts, ids = array("i", [position] * rows), array("i", [text[position] for text in texts])
        logits = np.empty((rows, engine.vocab_size), np.float32)
        arrays = (slots, starts, ones, counts, ones, ids, pages)
        step = Step(rows, *(each.buffer_info()[0] for each in arrays))
        rooms = (tokens.buffer_info()[0], logprobs.buffer_info()[0], None, None, 0)
        engine.run(step, Result(*rooms, logits.ctypes.data))
        yield logits


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def measure(located: Located) -> dict[str, Any]:
    """Return all numbers of the model."""
    texts = windows(located)
    engines = [
        NativeEngine(
            str(located.path),
            slots=WINDOWS,
            max_rows=WINDOWS,
            pages=WINDOWS * WINDOW // PAGE,
            exact=exact,
        )
        for exact in (True, False)
    ]
    streams = [logits_along(engine, texts) for engine in engines]
    lost = [0.0, 0.0]
    divergence, agreed, count = 0.0, 0, 0
    for position, pair in enumerate(zip(*streams, strict=True)):
        wanted, found = (_log_softmax(logits) for logits in pair)
        divergence += float((np.exp(wanted) * (wanted - found)).sum())
        agreed += int((wanted.argmax(-1) == found.argmax(-1)).sum())
        count += WINDOWS
        if position + 1 < WINDOW:
            following = [text[position + 1] for text in texts]
            for side, table in enumerate((wanted, found)):
                lost[side] -= float(table[range(WINDOWS), following].sum())
    for engine in engines:
        engine.close()
    perplexity = [math.exp(loss / (WINDOWS * (WINDOW - 1))) for loss in lost]
    return {
        "model": Path(located.path).name,
        "isa": engines[1].isa,
        "positions": count,
        "perplexity_fp32": round(perplexity[0], 4),
        "perplexity": round(perplexity[1], 4),
        "perplexity_change": round(perplexity[1] / perplexity[0] - 1, 5),
        "kl": round(divergence / count, 5),
        "top1_agreement": round(agreed / count, 4),
    }


def main() -> int:
    """Print the numbers of the default model, or of the one named, as JSON."""
    located = locate(sys.argv[1] if len(sys.argv) > 1 else None, hf_home=None)
    sys.stdout.write(json.dumps(measure(located), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
