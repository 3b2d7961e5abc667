"""Tokens to events: the same text however tokens arrive, and every token exactly once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.vocabularies import byte_level, model_info, sentencepiece, token_id
from turing_gateway.call import (
    Call,
    Event,
    Finish,
    Message,
    Template,
    TextDelta,
    ThinkDelta,
    TokenInfo,
    ToolDelta,
)
from turing_gateway.text.answer import Reading
from turing_gateway.text.reasoning import Tags
from turing_gateway.text.stream import TextStream
from turing_gateway.text.tokenizer import Tokenizer
from turing_gateway.text.tools.objects import hermes
from turing_protocol.codec import pack, pack_floats
from turing_protocol.messages import Finished, Reason, Timings, TokenLogprobs
from turing_protocol.sampling import Sampling

ORACLE = byte_level(["<|end|>"], ["<think>"])
END = token_id(ORACLE, "<|end|>")
INFO = model_info(eos_ids=(END,))
TOKENIZER = Tokenizer(ORACLE.to_str().encode(), INFO)
TIMINGS = Timings(queue_ms=1.0)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False, parse_special=False)


def logprobs(count: int) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(-0.5, pack([65, END]), pack_floats([-0.5, -2.0])) for _ in range(count)
    )


def run(
    groups: list[list[int]], reason: Reason = Reason.LENGTH, **fields: Any
) -> tuple[list[Event], TextStream]:
    call = Call(model="m", prompt="x", **fields)
    stream = TextStream(TOKENIZER, call, INFO, choice=3)
    events: list[Event] = []
    for ids in groups:
        given_logprobs = logprobs(len(ids)) if call.sampling.logprobs >= 0 else ()
        events += stream.feed(ids, given_logprobs)
    output = sum(map(len, groups))
    events += stream.finish(Finished(1, reason, 5, 4, output, TIMINGS))
    return events, stream


def deltas(events: list[Event]) -> list[TextDelta]:
    return [event for event in events if isinstance(event, TextDelta)]


def text_of(events: list[Event]) -> str:
    return "".join(delta.text for delta in deltas(events))


def end_of(events: list[Event]) -> Finish:
    assert isinstance(events[-1], Finish)
    return events[-1]


IDS = st.lists(st.integers(0, 450).filter(lambda token: token != END), max_size=30)
STOPS = st.lists(st.sampled_from(["a", "the", "ab", "\n", "é", " t"]), max_size=2, unique=True)


@given(IDS, STOPS, st.data())
def test_how_tokens_are_grouped_changes_nothing(
    ids: list[int], stops: list[str], data: st.DataObject
) -> None:
    borders = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    ends = [*borders, len(ids)]
    groups = [ids[start:end] for start, end in zip([0, *borders], ends, strict=True)]
    options: dict[str, Any] = {"stop": tuple(stops), "sampling": Sampling(logprobs=2)}
    alone, _ = run([[token] for token in ids], **options)
    grouped, _ = run(groups, **options)
    assert text_of(grouped) == text_of(alone)
    assert end_of(grouped) == end_of(alone)
    assert [i for d in deltas(grouped) for i in d.ids] == [i for d in deltas(alone) for i in d.ids]


@given(IDS, STOPS)
def test_every_token_is_in_exactly_one_delta(ids: list[int], stops: list[str]) -> None:
    events, stream = run(
        [[token] for token in ids], stop=tuple(stops), sampling=Sampling(logprobs=0)
    )
    delivered = [token for delta in deltas(events) for token in delta.ids]
    infos = [info for delta in deltas(events) for info in delta.tokens]
    assert delivered == [info.id for info in infos] == ids[: end_of(events).output_tokens]
    joined = b"".join(info.data for info in infos).decode("utf-8", "ignore")
    shown = text_of(events).replace("\ufffd", "")
    assert joined.replace("\ufffd", "").startswith(shown)
    if not stream.stopped:
        assert joined.replace("\ufffd", "") == shown


@given(st.text(max_size=20))
def test_no_token_comes_before_all_of_its_text_is_shown(text: str) -> None:
    events, _ = run([[token] for token in ids_of(text)], sampling=Sampling(logprobs=0))
    shown, data = "", b""
    for delta in deltas(events):
        shown += delta.text
        data += b"".join(info.data for info in delta.tokens)
        assert shown.encode().startswith(data)
    assert shown.encode() == data


def test_the_end_token_is_counted_and_not_shown() -> None:
    ids = [*ids_of("the end"), END]
    events, stream = run([ids], Reason.STOP, sampling=Sampling(logprobs=1))
    assert text_of(events) == "the end"
    assert not stream.stopped
    assert [token for delta in deltas(events) for token in delta.ids] == ids
    assert deltas(events)[-1].tokens[-1].data == b""
    assert end_of(events) == Finish(
        choice=3, reason="stop", prompt_tokens=5, cached_tokens=4, output_tokens=len(ids),
        timings=TIMINGS,
    )  # fmt: skip


def test_any_stop_token_is_hidden_and_include_stop_shows_it() -> None:
    comma = ids_of(",")[0]
    ids = [*ids_of("a"), comma]
    sampling = Sampling(stop_ids=(comma,))
    assert text_of(run([ids], Reason.STOP, sampling=sampling)[0]) == "a"
    assert text_of(run([ids], Reason.STOP, sampling=sampling, include_stop=True)[0]) == "a,"


def test_with_ignore_eos_the_end_token_is_one_of_many() -> None:
    ids = [*ids_of("a"), END, *ids_of("b")]
    ignored = Sampling(ignore_eos=True)
    assert text_of(run([ids], sampling=ignored)[0]) == "ab"
    assert text_of(run([ids], sampling=ignored, skip_special_tokens=False)[0]) == "a<|end|>b"


def test_a_stop_string_ends_the_stream_where_it_is_complete() -> None:  # F11
    ids = ids_of("The quick brown fox jumps")
    events, stream = run(
        [[token] for token in ids], stop=("own fox",), sampling=Sampling(logprobs=0)
    )
    finish = end_of(events)
    assert text_of(events) == "The quick br"
    assert (finish.reason, finish.stop, stream.stopped) == ("stop", "own fox", True)
    until = next(
        n for n in range(len(ids)) if "own fox" in TOKENIZER.decode(ids[:n], skip_special=True)
    )
    assert finish.output_tokens == until
    assert [token for delta in deltas(events) for token in delta.ids] == ids[:until]


def test_tokens_behind_a_stop_in_the_same_step_are_not_counted() -> None:
    ids = ids_of("a\n") + ids_of("the end")
    events, _ = run([ids], stop=("\n",))
    assert (text_of(events), end_of(events).output_tokens) == ("a", len(ids_of("a\n")))


def test_what_looked_like_a_stop_arrives_at_the_end() -> None:  # F13
    events, _ = run([[token] for token in ids_of("a\nb\n")], stop=("\n<|endoftext|>",))
    assert (text_of(events), end_of(events).reason) == ("a\nb\n", "length")


def test_a_half_character_at_the_end_is_dropped_and_its_tokens_are_not() -> None:  # F01
    ids = ids_of("a🫠")[:-1]
    events, _ = run([[token] for token in ids], sampling=Sampling(logprobs=0))
    assert text_of(events) == "a"
    assert [token for delta in deltas(events) for token in delta.ids] == ids


def test_a_bad_byte_keeps_its_true_bytes() -> None:  # F02
    bad = next(token for token in range(600) if TOKENIZER.token_bytes(token) == b"\x80")
    events, _ = run([[*ids_of("a"), bad, *ids_of("b")]], sampling=Sampling(logprobs=0))
    assert text_of(events) == "a\ufffdb"
    assert [info.data for info in deltas(events)[0].tokens] == [b"a", b"\x80", b"b"]


def test_logprobs_come_with_the_bytes_of_alternatives() -> None:
    events, _ = run([ids_of("a")], sampling=Sampling(logprobs=2))
    (token,) = ids_of("a")
    assert deltas(events)[0].tokens == (
        TokenInfo(token, b"a", -0.5, ((TOKENIZER.token_bytes(65), -0.5), (b"<|end|>", -2.0))),
    )
    assert deltas(run([ids_of("a")])[0])[0].tokens == ()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": (Message(role="user", content="x"),)}, "the end"),
        ({"prompt": "x"}, " the end"),
        (
            {
                "messages": (Message(role="assistant", content="x"),),
                "template": Template(continue_final_message=True),
            },
            " the end",
        ),
    ],
)
def test_the_space_before_the_first_word_is_real_only_in_mid_text(
    fields: dict[str, Any], text: str
) -> None:
    tokenizer = Tokenizer(sentencepiece().to_str().encode(), INFO)
    stream = TextStream(tokenizer, Call(model="m", **fields), INFO)
    ids = tokenizer.encode("the end", add_special=False, parse_special=False)
    assert text_of(stream.feed(ids)) == text


# Reasoning and calls

THOUGHTFUL = Reading(tags=Tags("<think>", "</think>"), end_ids=tuple(ids_of("</think>")))
TOOL_CALL = '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'
ANSWERS = (
    "<think>why</think>so",
    "<think>why",
    "<think>a</think>\n\n" + TOOL_CALL,
    f"Wait. {TOOL_CALL}\n{TOOL_CALL} Done.",
    TOOL_CALL[:40],
    "<think>hm</think>a <tool",
)


def parsed(
    groups: list[list[int]], reading: Reading = THOUGHTFUL, **fields: Any
) -> tuple[list[Event], TextStream]:
    stream = TextStream(
        TOKENIZER,
        Call(model="m", messages=(Message(role="user", content="x"),), **fields),
        INFO,
        reading=reading,
        tools=hermes().reader(["f"]),
    )
    events: list[Event] = []
    for ids in groups:
        events += stream.feed(ids, logprobs(len(ids)) if fields.get("sampling") else ())
    output = sum(map(len, groups))
    return events + stream.finish(Finished(1, Reason.STOP, 5, 4, output, TIMINGS)), stream


def joined(events: list[Event]) -> list[tuple[Any, ...]]:
    """Return what is shown and by which tokens, neighbours of one kind joined, without call ids."""
    shown: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case TextDelta(text=text) | ThinkDelta(text=text):
                part: tuple[Any, ...] = (type(event).__name__, text, event.ids)
            case ToolDelta(name=name, arguments=arguments):
                part = ("name" if name else "arguments", name or arguments, event.ids)
            case _:
                part = (event,)
        if shown and len(part) == 3 and shown[-1][0] == part[0] != "name":
            part = (part[0], shown[-1][1] + part[1], shown.pop()[2] + part[2])
        shown.append(part)
    return shown


@pytest.mark.parametrize("stop", [(), ("ZZZZZZZZ",), ("Done",)])
@pytest.mark.parametrize("answer", ANSWERS)
def test_how_parsed_tokens_are_grouped_changes_nothing(answer: str, stop: tuple[str, ...]) -> None:
    ids = ids_of(answer)
    alone = joined(parsed([[token] for token in ids], stop=stop)[0])
    for at in range(len(ids) + 1):
        assert joined(parsed([ids[:at], ids[at:]], stop=stop)[0]) == alone


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_stop_string_that_never_comes_changes_nothing(answer: str) -> None:  # F16
    def shown(stop: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return [part[:2] for part in joined(parsed([ids_of(answer)], stop=stop)[0])]

    assert shown(("ZZZZ", "</think>ZZ", "e")[:2]) == shown(())


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_parsed_token_is_in_exactly_one_delta(answer: str) -> None:
    ids = [*ids_of(answer), END]
    events, _ = parsed([[token] for token in ids])
    deltas = [e for e in events if isinstance(e, TextDelta | ThinkDelta | ToolDelta)]
    assert [token for delta in deltas for token in delta.ids] == ids


def test_tokens_of_reasoning_are_counted_and_have_no_logprobs() -> None:
    thought, text = ids_of("<think>why</think>"), ids_of("so it is")
    events, _ = parsed([thought, text], sampling=Sampling(logprobs=1))
    assert end_of(events).reasoning_tokens == len(thought)
    assert [info.id for delta in deltas(events) for info in delta.tokens] == text
    cut, _ = parsed([ids_of("<think>why")])  # F44
    assert text_of(cut) == ""
    assert end_of(cut).reasoning_tokens == len(ids_of("<think>why"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(TOOL_CALL, "tool_calls"), (TOOL_CALL[:45], "stop"), ("no", "stop"), ("", "stop")],
)
def test_the_reason_is_tool_calls_exactly_with_complete_calls(answer: str, reason: str) -> None:
    assert end_of(parsed([ids_of(answer)])[0]).reason == reason  # F17


def test_the_first_piece_of_a_call_has_its_identity_alone() -> None:
    events, _ = parsed([ids_of(f"{TOOL_CALL}{TOOL_CALL}")])
    calls = [event for event in events if isinstance(event, ToolDelta)]
    assert [(call.index, call.name, call.arguments) for call in calls] == [
        (0, "f", ""),
        (0, "", '{"a": "é"}'),
        (1, "f", ""),
        (1, "", '{"a": "é"}'),
    ]
    assert calls[0].id.startswith("call_") and calls[0].id != calls[2].id
    assert calls[1].id == ""


def test_a_spent_budget_lets_no_further_token_in() -> None:
    ids = ids_of("<think>" + "why " * 20)
    stream = TextStream(TOKENIZER, Call(model="m"), INFO, reading=_with_budget(9))
    first = stream.feed(ids)
    assert (stream.spent, stream.received) == (True, 9)
    assert stream.feed(ids) == []
    stream.force_end()
    assert not stream.spent
    rest = stream.feed(ids_of("so"))
    forced = 9 + len(stream.end_ids)
    assert stream.received == forced + len(ids_of("so"))
    assert text_of([*first, *rest]) == "so"
    finish = stream.finish(Finished(1, Reason.STOP, 5, 4, 99, TIMINGS))[-1]
    assert isinstance(finish, Finish) and finish.reasoning_tokens == forced


def test_reasoning_that_has_ended_or_is_over_is_not_forced_to_end() -> None:
    short = ids_of("<think>a</think>" + "b" * 30)
    for ids in (short, [*ids_of("<think>why"), END]):
        stream = TextStream(TOKENIZER, Call(model="m"), INFO, reading=_with_budget(len(ids)))
        stream.feed(ids)
        assert not stream.spent


def _with_budget(tokens: int) -> Reading:
    return Reading(tags=THOUGHTFUL.tags, end_ids=THOUGHTFUL.end_ids, budget=tokens)


def test_special_tokens_of_the_markup_reach_the_parsers() -> None:
    reading = Reading(tags=Tags("<think>", "<|end|>"), visible=frozenset([END]))
    stream = TextStream(TOKENIZER, Call(model="m"), model_info(), reading=reading)
    events = stream.feed([*ids_of("<think>a"), END, *ids_of("b")])
    assert text_of(events) == "b"
