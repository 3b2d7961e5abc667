"""The runner without a model keeps the contract that lets tests find a wrong page or position."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from engine.rig import make_spec
from turing_engine.plan.plan import Chunk, Plan, Start
from turing_engine.run.scripted import (
    EOS,
    KV_BYTES,
    SPECIAL,
    VOCAB_SIZE,
    Script,
    ScriptedRunner,
    parse_script,
    scripted_files,
    scripted_info,
)
from turing_protocol.codec import unpack, unpack_floats
from turing_protocol.errors import Code, TuringError
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Sampling


def make_start(prompt: list[int], sampling: Sampling, banned: list[int], slot: int = 0) -> Start:
    return Start(slot, sampling, prompt, [], banned)


def generate(
    prompt: list[int],
    count: int,
    *,
    model: str = "scripted:",
    sampling: Sampling | None = None,
    banned: list[int] | None = None,
    chunks: tuple[int, ...] = (),
) -> list[int]:
    """Return ``count`` tokens; ``chunks`` are the lengths in which the prompt is computed."""
    runner = ScriptedRunner(make_spec(model))
    pages = list(range(9, -1, -1))
    sampling = sampling or Sampling(temperature=0.0)
    starts = [make_start(prompt, sampling, banned or [])]
    tokens, at = list(prompt), 0
    for size in chunks:
        runner.run(Plan(0, [Chunk(0, at, tokens[at : at + size], pages, False)], starts, []))
        starts, at = [], at + size
    for _ in range(count):
        plan = Plan(0, [Chunk(0, at, tokens[at:], pages, True)], starts, [])
        starts, at = [], len(tokens)
        tokens += runner.run(plan).rows[0].ids
    return tokens[len(prompt) :]


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=3, max_size=200), st.data())
def test_chunks_change_nothing(prompt: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(prompt) - 1))
    assert generate(prompt, 4, chunks=(cut,)) == generate(prompt, 4)


def test_every_earlier_token_counts() -> None:
    prompt = list(range(200))
    base = generate(prompt, 8)
    for position in range(200):
        other = [*prompt]
        other[position] += 1
        assert generate(other, 8) != base


def test_only_the_seed_of_sampled_requests_counts() -> None:
    sampled = [generate([1], 8, sampling=Sampling(seed=seed)) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    greedy = [generate([1], 8, sampling=Sampling(seed=s, temperature=0.0)) for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_a_page_that_was_never_computed_is_found_out() -> None:
    runner = ScriptedRunner(make_spec())
    plan = Plan(0, [Chunk(0, PAGE, [1], [0, 1], True)], [make_start([1], Sampling(), [])], [])
    with pytest.raises(KeyError):
        runner.run(plan)
    runner.run(Plan(0, [Chunk(0, 0, [1, 2], [0], False)], [], []))
    with pytest.raises(RuntimeError, match="position 5 was never computed"):
        runner.run(Plan(0, [Chunk(0, 6, [1], [0], False)], [], []))


def test_a_script_is_replayed_then_ended() -> None:
    assert generate([7], 4, model="scripted:ids=72+105") == [72, 105, EOS, EOS]


def test_a_text_file_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "answer.txt"
    file.write_text("Hé")
    assert generate([7], 4, model=f"scripted:text={file}") == [*"Hé".encode(), EOS]


def test_the_end_waits_for_min_tokens() -> None:
    sampling = Sampling(min_tokens=2)
    got = generate([7], 4, model="scripted:ids=65", sampling=sampling, banned=[EOS])
    assert got == [65, 10, EOS, EOS]


def test_logprobs_come_with_alternatives() -> None:
    runner = ScriptedRunner(make_spec())
    start = make_start([1], Sampling(logprobs=3), [])
    (row,) = runner.run(Plan(0, [Chunk(0, 0, [1], [0], True)], [start], [])).rows
    (info,) = row.logprobs
    assert unpack(info.top_ids)[0] == row.ids[0]
    tops = unpack_floats(info.top)
    assert len(tops) == 3
    assert tops == sorted(tops, reverse=True)
    assert tops[0] == pytest.approx(info.logprob)


def test_pages_come_from_the_memory_given() -> None:
    spec = replace(make_spec(pages=0), kv_bytes=10 * PAGE * KV_BYTES)
    assert ScriptedRunner(spec).pages == 10


@pytest.mark.parametrize(
    ("reference", "script"),
    [
        ("scripted:", Script()),
        ("scripted:delay_ms=20", Script(delay=0.02)),
        ("scripted:ids=1+2,delay_ms=1", Script(ids=(1, 2), delay=0.001)),
    ],
)
def test_options(reference: str, script: Script) -> None:
    assert parse_script(reference) == script


@pytest.mark.parametrize(
    "options", ["speed=1", "delay_ms=fast", "delay_ms=-1", "ids=", "ids=1+999", "text=/no/such"]
)
def test_wrong_options_are_named(options: str) -> None:
    with pytest.raises(TuringError, match=options.partition("=")[0]) as caught:
        parse_script(f"scripted:{options}")
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "model")


def test_the_digest_tells_scripts_apart() -> None:
    digests = {scripted_info(f"scripted:{o}").digest for o in ("", "ids=1", "ids=2")}
    assert len(digests) == 3


@given(st.text())
def test_the_tokenizer_is_one_id_per_byte(text: str) -> None:
    tokenizer = Tokenizer.from_str(scripted_files()["tokenizer.json"].decode())
    if not any(special in text for special in SPECIAL):
        ids = tokenizer.encode(text).ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id(SPECIAL[1]) == EOS
    assert tokenizer.get_vocab_size() == VOCAB_SIZE


def test_a_script_may_bring_its_own_chat_template(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    reference = f"scripted:ids=1,template={tmp_path}/t.jinja"
    assert scripted_files(reference)["chat_template"] == b"{{ messages }}"
    assert scripted_info(reference).digest != scripted_info("scripted:ids=1").digest
