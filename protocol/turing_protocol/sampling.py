"""What a client may ask of sampling, and the limits that gateway and engine both enforce."""

import math
from collections.abc import Callable

import msgspec

from turing_protocol.errors import Code, TuringError

MAX_LOGPROBS = 20
MAX_STOP_IDS = 64
MAX_BIAS = 1024
GREEDY_BELOW = 1e-5
"""A temperature below this is greedy decoding (vLLM's rule)."""


class Sampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the next token is drawn.

    Order of application: ``logit_bias``, penalties, temperature, ``min_p``, ``top_k``, ``top_p``.
    ``seed`` is always set on the wire: a gateway draws one when the client gave none, so that a
    resumed stream continues the same random sequence. ``logprobs`` is -1 for none, else the number
    of alternatives per token. ``repetition_penalty`` counts prompt and output tokens, the two
    OpenAI penalties count output tokens only.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = -1

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.top_p == 0.0


class Knobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Per-request engine controls (the ``X-Turing-*`` headers); ``None`` = default."""

    sparsity: float | None = None
    svd_kv: int | None = None
    draft_tokens: int | None = None


class Constraint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A grammar that the output must match.

    ``kind`` is one of json_object, json_schema, regex, choice, grammar; ``text`` is its source.
    """

    kind: str
    text: str = ""
    strict: bool = False


def _between(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: math.isfinite(value) and low <= value <= high


_LIMITS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("max_tokens", lambda v: v >= 0, "at least 0"),
    ("min_tokens", lambda v: v >= 0, "at least 0"),
    ("temperature", _between(0, 2), "between 0 and 2"),
    ("top_k", lambda v: -1 <= v < 2**31, "at least -1"),
    ("top_p", _between(0, 1), "between 0 and 1"),
    ("min_p", _between(0, 1), "between 0 and 1"),
    ("repetition_penalty", lambda v: math.isfinite(v) and 0 < v <= 10, "above 0 and at most 10"),
    ("frequency_penalty", _between(-2, 2), "between -2 and 2"),
    ("presence_penalty", _between(-2, 2), "between -2 and 2"),
    ("seed", lambda v: -(2**63) <= v < 2**63, "a 64-bit integer"),
    ("logprobs", lambda v: -1 <= v <= MAX_LOGPROBS, f"at most {MAX_LOGPROBS}"),
)


def check(sampling: Sampling, vocab_size: int) -> None:
    """Raise ``Code.INVALID`` naming the first field of ``sampling`` that is out of its limits."""
    for name, valid, words in _LIMITS:
        if not valid(getattr(sampling, name)):
            raise TuringError(Code.INVALID, f"{name} must be {words}", param=name)
    if sampling.min_tokens > sampling.max_tokens:
        raise TuringError(Code.INVALID, "min_tokens must not exceed max_tokens", param="min_tokens")
    _check_ids(sampling, vocab_size)


def _check_ids(sampling: Sampling, vocab_size: int) -> None:
    for name, entries, most in (
        ("logit_bias", sampling.logit_bias, MAX_BIAS),
        ("stop_token_ids", sampling.stop_ids, MAX_STOP_IDS),
    ):
        if len(entries) > most:
            raise TuringError(Code.INVALID, f"{name} has more than {most} entries", param=name)
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocab_size:
            raise TuringError(
                Code.INVALID, f"token {token} is not in the vocabulary", param="logit_bias"
            )
        if not (math.isfinite(bias) and -100 <= bias <= 100):
            raise TuringError(
                Code.INVALID, "a bias must be between -100 and 100", param="logit_bias"
            )
    for token in sampling.stop_ids:
        if not 0 <= token < vocab_size:
            raise TuringError(
                Code.INVALID, f"token {token} is not in the vocabulary", param="stop_token_ids"
            )
