"""A sequence's logits are the same bits whatever else is computed with it, and how."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoints import checkpoint, prompt, write_gguf
from kernels.natively import (
    Floats,
    Part,
    logits_behind,
    native_engine,
    run_parts,
    sampling,
)
from turing_kernels.native import NativeEngine

LENGTH = 300
ENDS = [LENGTH - 3, LENGTH - 2, LENGTH - 1, LENGTH]
PAGES = 400

MODES: dict[str, dict[str, Any]] = {
    "w4": {"quantize": "w4"},
    "w8": {"quantize": "w8"},
    "float": {},
    "exact": {"exact": True},
}
FAMILIES = ("llama", "gemma3")
"""One plain family, and one with every extra: norms per head and behind, windows, two ropes."""

CASES = list(itertools.product(FAMILIES, MODES))


def options(mode: str, **more: Any) -> dict[str, Any]:
    return {"slots": 40, "max_rows": 1024, "pages": PAGES} | MODES[mode] | more


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[NativeEngine, Floats]]:
    """An engine with two threads, and the last logits of ``prompt(LENGTH)`` computed alone."""
    family, mode = request.param
    folder, _ = checkpoint(family)
    with native_engine(folder, **options(mode, threads=1)) as single:
        wanted = logits_behind(single, prompt(LENGTH), ENDS)
    with native_engine(folder, **options(mode, threads=2)) as engine:
        yield engine, wanted


def same_bits(first: Floats, second: Floats) -> bool:
    return bool(np.array_equal(first.view(np.uint32), second.view(np.uint32)))


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize(("family", "mode"), CASES)
def test_threads(family: str, mode: str, threads: int) -> None:
    folder, _ = checkpoint(family)
    found = []
    for count in (1, threads):
        with native_engine(folder, **options(mode, threads=count)) as engine:
            found.append(logits_behind(engine, prompt(LENGTH), ENDS))
    assert same_bits(*found)


@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 4), max_size=12))
def test_chunks(case: tuple[NativeEngine, Floats], cuts: set[int]) -> None:
    engine, wanted = case
    ends = sorted(cuts) + ENDS
    assert same_bits(logits_behind(engine, prompt(LENGTH), ends)[-len(ENDS) :], wanted)


@pytest.mark.parametrize("chunk", [1, 8, 17, 64, 128, 256])
def test_equal_chunks(case: tuple[NativeEngine, Floats], chunk: int) -> None:
    engine, wanted = case
    ends = [*range(chunk, ENDS[0], chunk), *ENDS]
    assert same_bits(logits_behind(engine, prompt(LENGTH), ends)[-len(ENDS) :], wanted)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_company(case: tuple[NativeEngine, Floats], data: st.DataObject) -> None:
    """Thirty-one other sequences, prefilling and decoding, in any order and on any pages."""
    engine, wanted = case
    count = 32
    place = data.draw(st.integers(0, count - 1), label="place")
    seed = data.draw(st.integers(0, 2**16), label="seed")
    rng = np.random.default_rng(seed)
    pages = rng.permutation(PAGES).reshape(-1, 8)[:count].tolist()
    ids = [prompt(LENGTH, salt) for salt in range(1, count + 1)]
    ids[place] = prompt(LENGTH)
    done = [0] * count
    for slot in range(count):
        engine.start(slot, sampling())
    found: list[Floats] = []
    while len(found) < len(ENDS):
        parts, rows = [], 0
        for slot in rng.permutation(count).tolist():
            target = ENDS[len(found)] if slot == place else LENGTH
            chunk = int(rng.choice([1, 1, 1, 2, 7, 64, 130]))
            length = min(chunk, target - done[slot], 1024 - rows)
            if length > 0:
                last = done[slot] + length
                sample = last in ENDS if slot == place else bool(rng.integers(2))
                parts.append(
                    Part(slot, done[slot], ids[slot][done[slot] : last], pages[slot], sample)
                )
                done[slot], rows = last, rows + length
        _, logits = run_parts(engine, parts)
        sampled = [part.slot for part in parts if part.sample]
        if place in sampled:
            found.append(logits[sampled.index(place)])
    assert same_bits(np.stack(found), wanted)


@pytest.mark.parametrize("shared", [64, 128, 192, 256])
def test_prefix_hit(case: tuple[NativeEngine, Floats], shared: int) -> None:
    """Pages that another sequence computed are as good as one's own."""
    engine, wanted = case
    ids = prompt(LENGTH)
    engine.start(1, sampling())
    run_parts(engine, [Part(1, 0, ids[:shared] + prompt(50, 3), list(range(10, 18)))])
    engine.start(0, sampling())
    table = [*range(10, 10 + shared // 64), *range(30, 36)]
    found, start = [], shared
    for end in ENDS:
        found.append(run_parts(engine, [Part(0, start, ids[start:end], table)])[1][0])
        start = end
    assert same_bits(np.stack(found), wanted)


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "avx512_bf16"])
def test_every_instruction_set(isa: str, tmp_path: Path, isas: Sequence[str]) -> None:
    if isa not in isas:
        pytest.skip(f"this processor lacks {isa}")
    _, model = checkpoint("llama")
    path = write_gguf(model, tmp_path / "model.gguf", kind="Q4_1")
    ids = prompt(LENGTH)
    found = []
    for threads, ends in ((1, ENDS), (3, ENDS), (2, [100, 101, 164, 250, *ENDS])):
        with native_engine(path, pages=PAGES, threads=threads, isa=isa) as engine:
            found.append(logits_behind(engine, ids, ends)[-len(ENDS) :])
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])


def test_avx2_and_avx512_agree_bit_for_bit(tmp_path: Path, isas: Sequence[str]) -> None:
    if "avx512" not in isas:
        pytest.skip("this processor lacks avx512")
    _, model = checkpoint("llama")
    path = write_gguf(model, tmp_path / "model.gguf", kind="Q4_1")
    found = []
    for isa in ("avx2", "avx512"):
        with native_engine(path, pages=PAGES, isa=isa) as engine:
            found.append(logits_behind(engine, prompt(LENGTH), ENDS))
    assert same_bits(*found)


@pytest.fixture(scope="module")
def isas() -> list[str]:
    """The instruction sets that this processor has, found by asking for each."""
    folder, _ = checkpoint("llama")
    found = []
    for isa in ("portable", "avx2", "avx512", "avx512_bf16"):
        try:
            with native_engine(folder, isa=isa):
                found.append(isa)
        except ValueError as error:
            assert "lacks the instruction set" in str(error)
    return found
