"""What a call may ask of the engines that serve its model; every refusal names its field."""

from collections.abc import Sequence

from turing_gateway.call import Call
from turing_gateway.headers import DRAFT_TOKENS, SPARSITY, SVD_KV
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Limits
from turing_protocol.prefix import PAGE

KV_FORMATS = {0: "plain", 1: "int8"}
"""``X-Turing-SVD-KV`` → format of the KV pages."""


def output_limit(call: Call, prompt: Sequence[int], context: int) -> int:
    """Return the ``max_tokens`` to run with: as asked, or what is left of ``context``.

    What does not fit is ``CONTEXT_TOO_LONG``; it is only cut when ``call.clamp`` says so.
    """
    asked = call.max_tokens
    if call.clamp:
        return _clamped(call, len(prompt), context)
    if len(prompt) + (1 if asked is None else asked) <= context:
        return context - len(prompt) if asked is None else asked
    words = f"the prompt has {len(prompt)} tokens"
    if asked:
        words += f" and {asked} more were asked for"
    raise TuringError(
        Code.CONTEXT_TOO_LONG,
        f"{words}; this model's maximum context length is {context} tokens",
        param=_prompt_field(call),
    )


def capacity(call: Call, limits: Limits) -> int:
    """Return the tokens, prompt and output, that an engine with ``limits`` has for ``call``.

    What is clamped is clamped to the KV memory too: a refusal for that would be one for ever.
    """
    longest = limits.context if call.context is None else min(limits.context, call.context)
    return min(longest, limits.pages_total * PAGE) if call.clamp else longest


def _clamped(call: Call, prompt: int, context: int) -> int:
    asked = call.max_tokens
    longest = context if asked == 0 else context - 1
    if prompt > longest:
        # Clients that compact a conversation read both numbers out of this wording (Anthropic's).
        words = f"prompt is too long: {prompt} tokens > {longest} maximum"
        raise TuringError(Code.CONTEXT_TOO_LONG, words, param=_prompt_field(call))
    return context - prompt if asked is None else min(asked, context - prompt)


def _prompt_field(call: Call) -> str:
    return "messages" if call.prompt is None else "prompt"


def unsupported(call: Call, limits: Limits) -> TuringError | None:
    """Return why an engine with ``limits`` cannot apply the controls of ``call``, or ``None``."""
    knobs = call.knobs
    if knobs.sparsity and not limits.sparsity_levels:
        return _refuse(SPARSITY, "this engine has no sparsity levels loaded")
    if knobs.svd_kv is not None and KV_FORMATS.get(knobs.svd_kv) not in limits.kv_formats:
        known = ", ".join(limits.kv_formats)
        return _refuse(SVD_KV, f"{knobs.svd_kv} is not available: KV formats here are {known}")
    if (knobs.draft_tokens or 0) > limits.max_draft_tokens:
        return _refuse(DRAFT_TOKENS, f"at most {limits.max_draft_tokens} here")
    if call.format is not None and call.format.kind not in limits.constraints:
        return _refuse(call.format_field, f"{call.format.kind} is not available here")
    return None


def warnings_of(call: Call) -> tuple[str, ...]:
    """Return what is known, before an engine is asked, of why an answer may disappoint."""
    if call.format is None or not call.stop or call.format_field == "tools":
        return ()
    return (
        f"stop: a stop string may end the answer before it has the form of {call.format_field}",
    )


def _refuse(param: str, words: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, f"{param}: {words}", param=param)
