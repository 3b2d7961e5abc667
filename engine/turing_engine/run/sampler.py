"""Logits to tokens: what each slot asked for, kept from step to step.

Order of application: ``logit_bias``, repetition penalty, frequency and presence penalties, banned
ids while fewer than ``min_tokens`` are out, ids that a grammar does not allow; then the most likely
token (ties: lowest id) or a draw (see ``draw``) after temperature, ``min_p``, ``top_k`` and
``top_p``. Log-probabilities are those of the untouched logits. Rows that ask for none of this cost
one vectorised pass.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turing_engine.plan.plan import Sampled, Start
from turing_engine.run.draw import draw, draw_filtered, rank, uniforms, weigh
from turing_protocol.codec import pack, pack_floats
from turing_protocol.messages import TokenLogprobs
from turing_protocol.sampling import Sampling

LOGPROB_FLOOR: Final = -9999.0
"""Stands for the log-probability of what cannot be sampled; infinity is not a JSON number."""

_NONE: Final[Mapping[int, NDArray[np.bool_]]] = {}


class Sampler:
    """Samples one token per row; rows are named by slot.

    Raises ``FloatingPointError`` when a row's logits are not numbers.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots: list[_Slot | None] = [None] * slots

    def start(self, start: Start) -> None:
        """Begin (or begin again) to sample for ``start.slot``."""
        self._slots[start.slot] = _Slot(start, self._vocab_size, self._device)

    def stop(self, slot: int) -> None:
        """Forget what ``slot`` asked for."""
        self._slots[slot] = None

    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        allowed: Mapping[int, NDArray[np.bool_]] = _NONE,
    ) -> list[Sampled]:
        """Return one token per row of ``logits`` ``[rows, vocab]`` (float32, changed in place).

        ``positions`` are the absolute positions that the tokens will have; ``allowed`` has the
        mask ``[vocab]`` of each row that may not take every id.
        """
        rows = [self._slot(slot) for slot in slots]
        report = _Logprobs(logits, [row.sampling.logprobs for row in rows])
        for index, row in enumerate(rows):
            if row.adjusts:
                row.adjust(logits[index])
        for index, mask in allowed.items():
            logits[index].masked_fill_(torch.from_numpy(~mask).to(self._device), -torch.inf)
        tokens = self._choose(logits, [row.sampling for row in rows], positions)
        for row, token in zip(rows, tokens, strict=True):
            row.accept(token)
        return report.attach(tokens)

    def _slot(self, slot: int) -> "_Slot":
        state = self._slots[slot]
        if state is None:
            raise ValueError(f"slot {slot} was not started")
        return state

    def _choose(
        self, logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
    ) -> list[int]:
        tokens = logits.argmax(-1)
        if logits.gather(-1, tokens[:, None]).isnan().any():
            raise FloatingPointError("the model's logits are not numbers")
        drawn = [index for index, sampling in enumerate(samplings) if not sampling.greedy]
        if drawn:
            asked = [samplings[index] for index in drawn]
            points = uniforms(
                [sampling.seed for sampling in asked],
                [positions[index] for index in drawn],
                self._device,
            )
            chosen = logits if len(drawn) == len(tokens) else logits[drawn]
            tokens[drawn] = self._draw(chosen, asked, points)
        result: list[int] = tokens.tolist()
        return result

    def _draw(self, logits: Tensor, samplings: Sequence[Sampling], points: Tensor) -> Tensor:
        temperatures = self._column(samplings, "temperature")
        weights = weigh(logits, temperatures, self._column(samplings, "min_p"))
        filtered = [
            index
            for index, sampling in enumerate(samplings)
            if sampling.top_p < 1 or 0 < sampling.top_k < self._vocab_size
        ]
        if not filtered:
            return draw(weights, points)
        tokens = points.new_zeros(len(samplings), dtype=torch.int64)
        plain = sorted(set(range(len(samplings))) - set(filtered))
        if plain:
            tokens[plain] = draw(weights[plain], points[plain])
        asked = [samplings[index] for index in filtered]
        limits = [s.top_k if 0 < s.top_k < self._vocab_size else self._vocab_size for s in asked]
        tokens[filtered] = draw_filtered(
            logits[filtered],
            weights[filtered],
            torch.tensor(limits, device=self._device),
            self._column(asked, "top_p"),
            points[filtered],
        )
        return tokens

    def _column(self, samplings: Sequence[Sampling], name: str) -> Tensor:
        values = [getattr(sampling, name) for sampling in samplings]
        return torch.tensor(values, dtype=torch.float64, device=self._device)


class _Slot:
    """What one sequence asked for, and the tokens that its penalties count."""

    def __init__(self, start: Start, vocab_size: int, device: torch.device) -> None:
        sampling = start.sampling
        self.sampling = sampling
        self._outputs = len(start.output)
        self._banned = torch.tensor(start.banned, dtype=torch.int64, device=device)
        ids, biases = zip(*sampling.logit_bias, strict=True) if sampling.logit_bias else ((), ())
        self._bias_ids = torch.tensor(ids, dtype=torch.int64, device=device)
        self._biases = torch.tensor(biases, dtype=torch.float32, device=device)
        self._counts = None
        if _penalises(sampling):
            self._counts = _Counts(start.prompt, start.output, vocab_size)
        self.adjusts = bool(sampling.logit_bias or start.banned or self._counts)
        """Whether ``adjust`` may have anything to do."""

    def adjust(self, logits: Tensor) -> None:
        """Apply bias, penalties and bans to one row of logits in place."""
        if len(self._bias_ids):
            logits.index_add_(0, self._bias_ids, self._biases)
        if self._counts:
            self._penalise(logits, self._counts)
        if len(self._banned) and self._outputs < self.sampling.min_tokens:
            logits.index_fill_(0, self._banned, -torch.inf)

    def accept(self, token: int) -> None:
        """Count ``token`` as an output."""
        self._outputs += 1
        if self._counts:
            self._counts.add(token)

    def _penalise(self, logits: Tensor, counts: "_Counts") -> None:
        """Penalise seen tokens: HF's rule for repetition, OpenAI's for frequency and presence."""
        ids = torch.from_numpy(counts.ids).to(logits.device)
        times = torch.from_numpy(counts.outputs).to(logits.device)
        seen = logits[ids]
        penalty = self.sampling.repetition_penalty
        seen = torch.where(seen > 0, seen / penalty, seen * penalty)
        seen -= self.sampling.frequency_penalty * times
        seen -= self.sampling.presence_penalty * (times > 0)
        logits.index_copy_(0, ids, seen)


def _penalises(sampling: Sampling) -> bool:
    penalties = (sampling.frequency_penalty, sampling.presence_penalty)
    return sampling.repetition_penalty != 1 or any(penalties)


class _Counts:
    """The distinct tokens of a sequence and how often each was generated."""

    def __init__(self, prompt: list[int], output: list[int], vocab_size: int) -> None:
        times = np.bincount(np.array(output, np.int64), minlength=vocab_size)
        distinct = np.union1d(np.array(prompt, np.int64), np.array(output, np.int64))
        self._places = {token: place for place, token in enumerate(distinct.tolist())}
        self._ids = distinct
        self._times = times[distinct].astype(np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens of prompt and output."""
        return self._ids[: len(self._places)]

    @property
    def outputs(self) -> NDArray[np.float32]:
        """How often each of ``ids`` was generated."""
        return self._times[: len(self._places)]

    def add(self, token: int) -> None:
        """Count one generated ``token``."""
        place = self._places.get(token)
        if place is None:
            place = self._append(token)
        self._times[place] += 1

    def _append(self, token: int) -> int:
        place = len(self._places)
        if place == len(self._ids):
            room = np.zeros(max(64, place), np.int64)
            self._ids = np.concatenate([self._ids, room])
            self._times = np.concatenate([self._times, room.astype(np.float32)])
        self._places[token] = place
        self._ids[place] = token
        return place


class _Logprobs:
    """Log-probabilities of the untouched logits, for the rows that asked (``wanted`` >= 0)."""

    def __init__(self, logits: Tensor, wanted: Sequence[int]) -> None:
        self._wanted = {index: count for index, count in enumerate(wanted) if count >= 0}
        if self._wanted:
            raw = logits[list(self._wanted)]
            self._top = rank(raw, min(max(self._wanted.values()), raw.shape[-1]))
            self._table = raw.log_softmax(-1).clamp_(min=LOGPROB_FLOOR)

    def attach(self, tokens: Sequence[int]) -> list[Sampled]:
        """Return the sampled ``tokens`` with what was asked about each."""
        result = [Sampled([token]) for token in tokens]
        for row, (index, count) in enumerate(self._wanted.items()):
            top = self._top[row, :count]
            entry = TokenLogprobs(
                logprob=self._table[row, tokens[index]].item(),
                top_ids=pack(top.tolist()),
                top=pack_floats(self._table[row, top].tolist()),
            )
            result[index].logprobs.append(entry)
        return result
