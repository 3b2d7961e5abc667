"""The runner that computes on the CPU with the native library; it needs no torch."""

from array import array
from typing import Final

from turing_engine.plan.plan import Chunk, Plan, Result, Sampled, Start
from turing_engine.run.masks import Masks
from turing_engine.run.runner import RunnerSpec
from turing_kernels import native
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import TokenLogprobs
from turing_protocol.sampling import MAX_LOGPROBS, Sampling

EXACT: Final = {"auto": False, "int8": False, "float32": True}
"""``dtype`` to whether activations and pages are float32 instead of int8 and bfloat16."""


class NativeRunner:
    """Runs a GGUF file or a safetensors folder; see the ``Runner`` contract.

    Raises ``TuringError`` when the library, the model or the memory for pages is not to be had.
    """

    def __init__(self, spec: RunnerSpec) -> None:
        if spec.dtype not in EXACT:
            known = ", ".join(EXACT)
            raise TuringError(Code.INVALID, f"dtype {spec.dtype!r}: use {known}", param="dtype")
        if spec.quantize not in native.QUANTIZE:
            known = ", ".join(native.QUANTIZE)
            raise TuringError(
                Code.INVALID, f"quantize {spec.quantize!r}: use {known}", param="quantize"
            )
        try:
            self._engine = native.NativeEngine(
                spec.model,
                slots=spec.max_running,
                max_rows=spec.max_step_tokens,
                pages=spec.pages,
                kv_bytes=spec.kv_bytes,
                threads=spec.threads,
                quantize=spec.quantize,
                exact=EXACT[spec.dtype],
            )
        except native.NativeError as error:
            raise TuringError(Code.INVALID, str(error), param="model") from None
        self.pages = self._engine.pages
        self.vocab_size = self._engine.vocab_size
        self.kv_bytes_per_token = self._engine.kv_bytes_per_token
        self.isa = self._engine.isa
        self.threads = self._engine.threads
        self._logprobs: dict[int, int] = {}
        """How many alternatives each slot wants, of the slots that want log-probabilities."""
        self._output = _Output(spec.max_running)

    def run(self, plan: Plan, masks: Masks | None = None) -> Result:
        """Compute one step and sample where the plan asks for it."""
        for slot in plan.stops:
            self._engine.stop(slot)
            self._logprobs.pop(slot, None)
        for start in plan.starts:
            self._start(start)
        chunks = plan.chunks
        if not chunks:
            return Result(plan.step, [])
        arrays = _flatten(chunks)
        step = native.Step(len(chunks), *(each.buffer_info()[0] for each in arrays))
        if masks is not None:
            pointers = _pointers(masks, len(chunks))
            step.masks = pointers.buffer_info()[0]
        self._engine.run(step, self._output.room(len(chunks)))
        ids = self._output.ids[: len(chunks)].tolist()
        if not self._logprobs:
            return Result(plan.step, [Sampled([token] if token >= 0 else []) for token in ids])
        return Result(plan.step, [self._sampled(i, chunks[i], ids[i]) for i in range(len(ids))])

    def close(self) -> None:
        """Free weights and pages; nothing may be called afterwards."""
        self._engine.close()

    def _start(self, start: Start) -> None:
        sampling = start.sampling
        self._engine.start(
            start.slot,
            native_sampling(sampling),
            prompt=start.prompt,
            output=start.output,
            banned=start.banned,
            bias=sampling.logit_bias,
        )
        self._logprobs.pop(start.slot, None)
        if sampling.logprobs >= 0:
            self._logprobs[start.slot] = sampling.logprobs

    def _sampled(self, index: int, chunk: Chunk, token: int) -> Sampled:
        if token < 0:
            return Sampled([])
        count = self._logprobs.get(chunk.slot)
        if count is None:
            return Sampled([token])
        return Sampled([token], [self._output.logprobs_of(index, min(count, self.vocab_size))])


class _Output:
    """Room for the results of a step, reused from step to step."""

    def __init__(self, chunks: int) -> None:
        self.ids = array("i")
        self._logprobs = array("f")
        self._top_ids = array("i")
        self._top = array("f")
        self._grow(chunks)

    def room(self, chunks: int) -> native.Result:
        """Return where the library writes the results of ``chunks`` chunks."""
        if chunks > len(self.ids):
            self._grow(chunks)
        return self._result

    def logprobs_of(self, index: int, count: int) -> TokenLogprobs:
        """Return what was reported of the token of chunk ``index``, with ``count`` alternatives."""
        top = slice(index * MAX_LOGPROBS, index * MAX_LOGPROBS + count)
        return TokenLogprobs(
            logprob=self._logprobs[index],
            top_ids=self._top_ids[top].tobytes(),
            top=self._top[top].tobytes(),
        )

    def _grow(self, chunks: int) -> None:
        self.ids = array("i", bytes(4 * chunks))
        self._logprobs = array("f", bytes(4 * chunks))
        self._top_ids = array("i", bytes(4 * chunks * MAX_LOGPROBS))
        self._top = array("f", bytes(4 * chunks * MAX_LOGPROBS))
        rooms = (self.ids, self._logprobs, self._top_ids, self._top)
        self._result = native.Result(*(each.buffer_info()[0] for each in rooms), MAX_LOGPROBS, None)


def _flatten(chunks: list[Chunk]) -> "tuple[array[int], ...]":
    """Return the int32 arrays of ``turing_step``, in the order of its fields."""
    slots, starts, lengths, page_counts, samples = (array("i") for _ in range(5))
    ids, pages = array("i"), array("i")
    for chunk in chunks:
        slots.append(chunk.slot)
        starts.append(chunk.start)
        lengths.append(len(chunk.ids))
        page_counts.append(len(chunk.pages))
        samples.append(chunk.sample)
        ids.extend(chunk.ids)
        pages.extend(chunk.pages)
    return slots, starts, lengths, page_counts, samples, ids, pages


def _pointers(masks: Masks, chunks: int) -> "array[int]":
    """Return the address of each chunk's mask, 0 where every id is legal."""
    addresses = array("Q", bytes(8 * chunks))
    for chunk, words in zip(masks.chunks, masks.fill(), strict=True):
        addresses[chunk] = words.ctypes.data
    return addresses


def native_sampling(sampling: Sampling) -> native.Sampling:
    """Return ``sampling`` in the library's form, without what goes beside it as arrays."""
    return native.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        top_k=sampling.top_k,
        min_tokens=sampling.min_tokens,
        logprobs=sampling.logprobs,
        greedy=sampling.greedy,
        seed=sampling.seed,
    )
