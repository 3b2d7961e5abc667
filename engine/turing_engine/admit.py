"""From a Submit to a Sequence: the engine's own judgement of everything a gateway sends. Pure."""

import msgspec

from turing_engine.plan.sequence import Sequence
from turing_protocol.codec import unpack
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Limits, ModelInfo, Reason, Submit
from turing_protocol.prefix import salt
from turing_protocol.sampling import Knobs, check

MAX_SPARSITY = 0.75

SPARSITY = "X-Turing-Sparsity"
SVD_KV = "X-Turing-SVD-KV"
DRAFT_TOKENS = "X-Turing-Draft-Tokens"


class Gatekeeper(msgspec.Struct, frozen=True):
    """What requests are measured against. ``vocab_size`` counts the ids that the runner knows."""

    info: ModelInfo
    limits: Limits
    vocab_size: int

    def sequence(self, gateway: bytes, submit: Submit, now: float) -> Sequence:
        """Return the sequence that ``submit`` asks for; a ``TuringError`` says what is wrong.

        ``finish`` is set already when ``prior`` ends in a stop token.
        """
        sampling = submit.sampling
        check(sampling, self.vocab_size)
        prompt = self._ids(submit.prompt, "prompt")
        prior = self._ids(submit.prior, "prior")
        self._check_length(len(prompt), len(prior), sampling.max_tokens)
        self._check_extras(submit)
        knobs = effective(submit.knobs, self.limits)
        ends = () if sampling.ignore_eos else self.info.eos_ids
        stop_ids = frozenset((*sampling.stop_ids, *ends))
        return Sequence(
            owner=(gateway, submit.rid),
            tokens=prompt + prior,
            prompt_len=len(prompt),
            sampling=sampling,
            stop_ids=stop_ids,
            finish=Reason.STOP if _is_over(submit, prior, stop_ids) else None,
            limit=len(prompt) + sampling.max_tokens,
            root=self._root(submit, knobs),
            lane=submit.lane,
            knobs=knobs,
            tenant=submit.salt,
            arrival=now,
            deadline=now + submit.deadline_ms / 1000 if submit.deadline_ms else float("inf"),
        )

    def _ids(self, packed: bytes, param: str) -> list[int]:
        try:
            ids = unpack(packed)
        except TuringError as error:
            raise TuringError(Code.INVALID, error.message, param=param) from None
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise TuringError(Code.INVALID, f"token {wrong} is not in the vocabulary", param=param)
        return ids

    def _check_length(self, prompt: int, prior: int, max_tokens: int) -> None:
        if not prompt:
            raise TuringError(Code.INVALID, "the prompt has no tokens", param="prompt")
        if prior > max_tokens:
            raise TuringError(Code.INVALID, "prior holds more than max_tokens", param="prior")
        if prompt + max_tokens > self.limits.context:
            raise TuringError(
                Code.CONTEXT_TOO_LONG,
                f"{prompt} prompt tokens and {max_tokens} output tokens exceed the context of "
                f"{self.limits.context} tokens",
                param="prompt",
            )

    def _check_extras(self, submit: Submit) -> None:
        if submit.adapter:
            raise TuringError(
                Code.MODEL_NOT_FOUND, f"no adapter {submit.adapter[:80]!r} is loaded", param="model"
            )
        wanted = submit.constraint
        if wanted is not None and wanted.kind not in self.limits.constraints:
            raise TuringError(
                Code.UNSUPPORTED,
                f"this engine cannot constrain output by {wanted.kind[:40]!r}",
                param="response_format",
            )
        if submit.deadline_ms < 0:
            raise TuringError(Code.INVALID, "must not be negative", param="deadline_ms")

    def _root(self, submit: Submit, knobs: Knobs) -> bytes:
        return salt(
            model=self.info.digest,
            sparsity=knobs.sparsity or 0.0,
            codec="int8" if knobs.svd_kv else "plain",
            tenant=submit.salt,
        )


def _is_over(submit: Submit, prior: list[int], stop_ids: frozenset[int]) -> bool:
    # Every id of a constrained answer is text, a stop id too: its grammar knows when it is over.
    return submit.constraint is None and bool(prior) and prior[-1] in stop_ids


def effective(knobs: Knobs, limits: Limits) -> Knobs:
    """Return the controls as they will be applied, defaults filled in.

    Sparsity is rounded down to a loaded level. What this engine does not have is
    ``Code.UNSUPPORTED``, what nobody may ask is ``Code.INVALID``; both name the header.
    """
    return Knobs(
        sparsity=_sparsity(knobs.sparsity, limits),
        svd_kv=_svd_kv(knobs.svd_kv, limits),
        draft_tokens=_draft_tokens(knobs.draft_tokens, limits),
    )


def _sparsity(wanted: float | None, limits: Limits) -> float:
    if wanted is None:
        return limits.default_sparsity
    if not 0 <= wanted <= MAX_SPARSITY:
        raise TuringError(Code.INVALID, f"must be between 0 and {MAX_SPARSITY}", param=SPARSITY)
    if wanted and not limits.sparsity_levels:
        raise TuringError(Code.UNSUPPORTED, "this engine has no sparsity levels", param=SPARSITY)
    return max((level for level in limits.sparsity_levels if level <= wanted), default=0.0)


def _svd_kv(wanted: int | None, limits: Limits) -> int:
    if wanted is None:
        return int(limits.default_kv == "int8")
    if wanted not in (0, 1):
        raise TuringError(Code.INVALID, "must be 0 or 1", param=SVD_KV)
    if ("plain", "int8")[wanted] not in limits.kv_formats:
        raise TuringError(
            Code.UNSUPPORTED, f"this engine has only {limits.kv_formats} pages", param=SVD_KV
        )
    return wanted


def _draft_tokens(wanted: int | None, limits: Limits) -> int:
    if wanted is None:
        return limits.max_draft_tokens
    if wanted < 0:
        raise TuringError(Code.INVALID, "must not be negative", param=DRAFT_TOKENS)
    if wanted > limits.max_draft_tokens:
        raise TuringError(
            Code.UNSUPPORTED,
            f"this engine drafts at most {limits.max_draft_tokens} tokens",
            param=DRAFT_TOKENS,
        )
    return wanted
