"""A runner without a model: exact, fast, and the same on every machine.

``--model scripted:`` makes the next token a hash of the whole history before it, so a wrong page,
position or resumed token changes all that follows. ``scripted:text=FILE`` and ``scripted:ids=1+2``
replay a script and then end the sequence. ``delay_ms=N`` makes every step take that long,
``template=FILE`` is its chat template instead of ChatML; options are separated by commas.
There are no logits: sampling parameters other than ``seed``,
``min_tokens`` and ``logprobs`` have nothing to act on. A constrained sequence takes the scripted id
where its grammar allows that, else a hash of the history picks one of the ids that are allowed.
"""

import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from turing_engine.plan.plan import Chunk, Plan, Result, Sampled, Start
from turing_engine.run.masks import Masks, allowed
from turing_engine.run.runner import RunnerSpec
from turing_protocol.codec import pack, pack_floats
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo, TokenLogprobs
from turing_protocol.prefix import PAGE

PREFIX = "scripted:"
SPECIAL = ("<|im_start|>", "<|im_end|>")
EOS = 257
VOCAB_SIZE = 256 + len(SPECIAL)
"""One id per byte, then the special tokens."""
CONTEXT = 1 << 20
KV_BYTES = 4096
"""Nominal bytes per token, so that ``--kv-memory`` means something."""

_ALPHABET = b"etaoin shrdlu cmfwyp vbgkjqxz. "
_MASK = (1 << 64) - 1
_NEWLINE = 10

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Script(msgspec.Struct, frozen=True):
    """What follows ``scripted:``. ``ids`` is None for the hash of the history."""

    ids: tuple[int, ...] | None = None
    delay: float = 0.0
    """Seconds per step."""
    template: str = _TEMPLATE
    """Source of the chat template."""


def parse_script(reference: str) -> Script:
    """Read ``scripted:key=value,…``; a mistake is ``Code.INVALID`` on ``model``."""
    script = Script()
    for option in filter(None, reference.removeprefix(PREFIX).split(",")):
        key, _, value = option.partition("=")
        try:
            script = _OPTIONS[key](script, value)
        except KeyError:
            known = ", ".join(_OPTIONS)
            raise _bad(f"unknown option {key!r} of a scripted model; known: {known}") from None
        except (ValueError, OSError) as error:
            raise _bad(f"bad {key!r} of a scripted model: {error}") from None
    return script


def _bad(message: str) -> TuringError:
    return TuringError(Code.INVALID, message, param="model")


def _with_ids(script: Script, value: str) -> Script:
    ids = tuple(int(word) for word in value.split("+"))
    if not all(0 <= token < VOCAB_SIZE for token in ids):
        raise ValueError(f"ids go from 0 to {VOCAB_SIZE - 1}")
    return msgspec.structs.replace(script, ids=ids)


def _with_text(script: Script, value: str) -> Script:
    return msgspec.structs.replace(script, ids=tuple(Path(value).read_bytes()))


def _with_delay(script: Script, value: str) -> Script:
    delay = float(value) / 1000
    if not 0 <= delay <= 60:
        raise ValueError("between 0 and 60000")
    return msgspec.structs.replace(script, delay=delay)


def _with_template(script: Script, value: str) -> Script:
    return msgspec.structs.replace(script, template=Path(value).read_text())


_OPTIONS: dict[str, Callable[[Script, str], Script]] = {
    "ids": _with_ids,
    "text": _with_text,
    "delay_ms": _with_delay,
    "template": _with_template,
}


class ScriptedRunner:
    """Keeps one hash per position where a model keeps K and V, in the pages that a plan names."""

    def __init__(self, spec: RunnerSpec) -> None:
        self.pages = spec.pages or max(1, spec.kv_bytes // (KV_BYTES * PAGE))
        self.vocab_size = VOCAB_SIZE
        self.kv_bytes_per_token = KV_BYTES
        self._script = parse_script(spec.model)
        self._slots: dict[int, Start] = {}
        self._kv: dict[int, list[int]] = {}

    def run(self, plan: Plan, masks: Masks | None = None) -> Result:
        """Fold every chunk into its pages and choose the next token where asked."""
        for slot in plan.stops:
            del self._slots[slot]
        for start in plan.starts:
            self._slots[start.slot] = start
        if self._script.delay:
            time.sleep(self._script.delay)
        legal = {} if masks is None else _legal(masks)
        rows = [self._row(chunk, legal.get(index)) for index, chunk in enumerate(plan.chunks)]
        return Result(plan.step, rows)

    def close(self) -> None:
        """Forget everything."""
        self._kv.clear()

    def _row(self, chunk: Chunk, legal: list[int] | None) -> Sampled:
        state = self._fold(chunk)
        if not chunk.sample:
            return Sampled([])
        start = self._slots[chunk.slot]
        token = self._choose(start, state, chunk.start + len(chunk.ids))
        if legal is not None and token not in legal:
            token = legal[_mix(state ^ (start.sampling.seed & _MASK)) % len(legal)]
        if start.sampling.logprobs < 0:
            return Sampled([token])
        return Sampled([token], [_logprobs(token, start.sampling.logprobs)])

    def _fold(self, chunk: Chunk) -> int:
        position, pages = chunk.start, chunk.pages
        state = self._read(pages, position - 1) if position else 0
        for token in chunk.ids:
            state = _mix(state ^ (token + 1))
            page = self._kv.setdefault(pages[position // PAGE], [0] * PAGE)
            page[position % PAGE] = state
            position += 1
        return state

    def _read(self, pages: list[int], position: int) -> int:
        state = self._kv[pages[position // PAGE]][position % PAGE]
        if not state:
            raise RuntimeError(f"position {position} was never computed")
        return state

    def _choose(self, start: Start, state: int, position: int) -> int:
        ids = self._script.ids
        if ids is None:
            key = 0 if start.sampling.greedy else start.sampling.seed & _MASK
            return _ALPHABET[_mix(state ^ key) % len(_ALPHABET)]
        done = position - len(start.prompt)
        token = ids[done] if done < len(ids) else EOS
        banned = done < start.sampling.min_tokens and token in start.banned
        return _NEWLINE if banned else token


def _legal(masks: Masks) -> dict[int, list[int]]:
    rows = allowed(masks.fill(), VOCAB_SIZE)
    return {chunk: row.nonzero()[0].tolist() for chunk, row in zip(masks.chunks, rows, strict=True)}


def _mix(x: int) -> int:
    """One round of splitmix64; never 0, which marks an empty position."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) or 1


def _logprobs(token: int, count: int) -> TokenLogprobs:
    """Halve the probability from one alternative to the next, starting with ``token``."""
    top_ids = [(token + rank) % VOCAB_SIZE for rank in range(count)]
    top = [-(rank + 1) * math.log(2) for rank in range(count)]
    return TokenLogprobs(-math.log(2), pack(top_ids), pack_floats(top))


def scripted_info(reference: str) -> ModelInfo:
    """Return the facts of the model that ``reference`` names."""
    script = parse_script(reference)
    digest = hashlib.sha256(msgspec.msgpack.encode(script)).hexdigest()
    return ModelInfo(
        name="scripted",
        digest=f"sha256:{digest}",
        architecture="scripted",
        context=CONTEXT,
        vocab_size=VOCAB_SIZE,
        eos_ids=(EOS,),
        bos_id=None,
        add_bos=False,
        parameters=0,
        size_bytes=0,
        quantization="none",
        kv_bytes_per_token=KV_BYTES,
        modified=0.0,
        format="scripted",
    )


def scripted_files(reference: str = PREFIX) -> dict[str, bytes]:
    """Return the assets a gateway needs: a byte-level tokenizer and a chat template."""
    template = parse_script(reference).template
    special = dict.fromkeys(("bos_token", "unk_token", "pad_token")) | {"eos_token": SPECIAL[1]}
    return {
        "tokenizer.json": msgspec.json.encode(_tokenizer()),
        "chat_template": template.encode(),
        "special_tokens": msgspec.json.encode(special),
        "generation_config": msgspec.json.encode({"eos_ids": (EOS,), "defaults": {}}),
        "metadata": b"{}",
    }


def _tokenizer() -> dict[str, object]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    level["use_regex"] = False
    added = [
        {"id": 256 + index, "content": token, "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
        for index, token in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": _byte_vocabulary(), "merges": []},
    }


def _byte_vocabulary() -> dict[str, int]:
    """Map each byte's printable stand-in (GPT-2's ``bytes_to_unicode``) to the byte."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return {chr(byte if byte in shown else next(hidden)): byte for byte in range(256)}
