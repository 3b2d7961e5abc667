"""The runner that computes with torch: the reference on the CPU, and the way to a GPU."""

import os
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from turing_engine.attention.paged import PagedAttention
from turing_engine.kv.codec import KVSpec
from turing_engine.kv.plain import PlainPages
from turing_engine.models.decoder import load_decoder
from turing_engine.models.spec import DecoderSpec
from turing_engine.models.weights import open_weights
from turing_engine.plan.plan import Chunk, Plan, Result, Sampled
from turing_engine.run.batch import Batch, build_batch, check_chunks
from turing_engine.run.masks import Masks, allowed
from turing_engine.run.runner import DeviceError, RunnerSpec
from turing_engine.run.sampler import Sampler
from turing_protocol.errors import Code, TuringError
from turing_protocol.prefix import PAGE

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class TorchRunner:
    """Runs a GGUF file or a safetensors folder; see the ``Runner`` contract.

    Raises ``TuringError`` when the model, the device, the type or the memory for pages is not to be
    had. ``dtype`` ``auto`` is float32 on the CPU and bfloat16 elsewhere.
    """

    def __init__(self, spec: RunnerSpec) -> None:
        device = _device(spec.device)
        dtype = _dtype(spec.dtype, device)
        if device.type == "cpu":
            torch.set_num_threads(spec.threads or _cores())
        weights = open_weights(spec.model)
        kv = _kv_spec(weights.spec, dtype)
        self.pages = spec.pages or _fitting_pages(spec.kv_bytes, kv)
        self.vocab_size = weights.spec.vocab_size
        self.kv_bytes_per_token = PlainPages.page_bytes(kv) // PAGE
        self._slots = spec.max_running
        self._device = device
        self._decoder = load_decoder(weights, dtype, device)
        self._sampler = Sampler(spec.max_running, self.vocab_size, device)
        self._attention = PagedAttention(
            PlainPages(self.pages, kv, device),
            kv_heads=kv.kv_heads,
            scale=weights.spec.attention_scale,
            windows=weights.spec.windows,
        )

    @torch.inference_mode()
    def run(self, plan: Plan, masks: Masks | None = None) -> Result:
        """Compute one step and sample where the plan asks for it."""
        chunks = plan.chunks
        check_chunks(chunks, vocab_size=self.vocab_size, pages=self.pages, slots=self._slots)
        for slot in plan.stops:
            self._sampler.stop(slot)
        for start in plan.starts:
            self._sampler.start(start)
        try:
            return Result(plan.step, self._compute(chunks, masks) if chunks else [])
        except torch.AcceleratorError as error:
            raise DeviceError(str(error).partition("\n")[0]) from error

    def close(self) -> None:
        """Free weights and pages; nothing may be called afterwards."""
        del self._decoder, self._attention, self._sampler

    def _compute(self, chunks: Sequence[Chunk], masks: Masks | None) -> list[Sampled]:
        batch = build_batch(chunks, self._device)
        sampled = self._sample(self._forward(batch), batch, chunks, masks)
        rows = [Sampled([]) for _ in chunks]
        for index, row in zip(batch.sampled, sampled, strict=True):
            rows[index] = row
        return rows

    def _forward(self, batch: Batch) -> Tensor:
        """Return the logits ``[len(batch.rows), vocab]``."""
        meta = self._attention.prepare(batch.spans, self._decoder.dtype, self._device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._attention.attend(layer, q, k, v, meta)

        return self._decoder.forward(batch.ids, batch.positions, batch.rows, attend)

    def _sample(
        self, logits: Tensor, batch: Batch, chunks: Sequence[Chunk], masks: Masks | None
    ) -> list[Sampled]:
        sampled = [chunks[index] for index in batch.sampled]
        slots = [chunk.slot for chunk in sampled]
        positions = [chunk.start + len(chunk.ids) for chunk in sampled]
        if masks is None:
            return self._sampler.sample(logits, slots, positions)
        row_of = {chunk: row for row, chunk in enumerate(batch.sampled)}
        legal = allowed(masks.fill(), self.vocab_size)
        rows = {row_of[chunk]: mask for chunk, mask in zip(masks.chunks, legal, strict=True)}
        return self._sampler.sample(logits, slots, positions, rows)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        words = str(error).partition("\n")[0][:200]
        raise TuringError(Code.INVALID, f"device {name!r}: {words}", param="device") from None
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        known = ", ".join(DTYPES)
        raise TuringError(Code.INVALID, f"dtype {name!r}: use auto, {known}", param="dtype")
    return DTYPES[name]


def _cores() -> int:
    """Return the cores this process may use; macOS cannot say and has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kv_spec(spec: DecoderSpec, dtype: torch.dtype) -> KVSpec:
    return KVSpec(layers=spec.layers, kv_heads=spec.kv_heads, head_dim=spec.head_dim, dtype=dtype)


def _fitting_pages(kv_bytes: int, kv: KVSpec) -> int:
    pages = kv_bytes // PlainPages.page_bytes(kv)
    if pages < 1:
        raise TuringError(
            Code.INVALID,
            f"{kv_bytes} bytes hold no page of {PlainPages.page_bytes(kv)} bytes",
            param="kv_bytes",
        )
    return pages
