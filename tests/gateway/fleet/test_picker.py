"""Where a sequence goes."""

import hypothesis.strategies as st
from hypothesis import given
from msgspec.structs import replace

from fakes.wire import LIMITS, MODEL, make_stats
from turing_gateway.fleet.picker import BOUND, Want, pick
from turing_gateway.fleet.view import EngineView, LinkState
from turing_protocol.messages import State


def make_view(name: str, load: int = 0, running: int = 0, **fields: object) -> EngineView:
    view = EngineView(
        endpoint=f"tcp://{name}:1",
        name=name,
        state=LinkState.READY,
        info=MODEL,
        limits=LIMITS,
        stats=make_stats(reserved_pages=load, running=running),
    )
    for field, value in fields.items():
        setattr(view, field, value)
    return view


def make_want(key: bytes = b"k", pages: int = 1, **fields: object) -> Want:
    return replace(Want(digest=MODEL.digest, key=key, pages=pages, tokens=64), **fields)


def picked(views: list[EngineView], want: Want) -> str | None:
    view = pick(views, want)
    return view.name if view else None


names = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)
LITTLE = int(LIMITS.pages_total * BOUND)


@given(names, st.binary(max_size=8), st.data())
def test_gateways_agree_whatever_order_and_small_differences_they_see(
    engines: list[str], key: bytes, data: st.DataObject
) -> None:
    loads = st.integers(0, LITTLE)
    left = [make_view(name, data.draw(loads)) for name in engines]
    right = [make_view(name, data.draw(loads)) for name in data.draw(st.permutations(engines))]
    assert picked(left, make_want(key)) == picked(right, make_want(key))


@given(names, st.binary(max_size=8), st.data())
def test_the_choice_is_never_far_busier_than_the_least(
    engines: list[str], key: bytes, data: st.DataObject
) -> None:
    views = [make_view(name, data.draw(st.integers(0, 2000))) for name in engines]
    view = pick(views, make_want(key))
    assert view is not None
    assert view.load <= min(other.load for other in views) + LITTLE


@given(names, st.binary(max_size=8))
def test_losing_an_engine_moves_only_its_own_prompts(engines: list[str], key: bytes) -> None:
    views = [make_view(name) for name in engines]
    home = picked(views, make_want(key))
    for gone in engines:
        if gone != home:
            rest = [view for view in views if view.name != gone]
            assert picked(rest, make_want(key)) == home


def test_prompts_spread() -> None:
    views = [make_view(name) for name in "abcd"]
    homes = [picked(views, make_want(bytes([number]))) for number in range(100)]
    assert min(homes.count(name) for name in "abcd") > 10


def test_who_cannot_serve_is_dropped() -> None:
    good = make_view("good", load=999)
    bad = [
        make_view("lost", state=LinkState.LOST),
        make_view("draining", state=LinkState.DRAINING),
        make_view("leaving", leaving=True),
        make_view("loading", stats=make_stats(state=State.LOADING)),
        make_view("broken", stats=make_stats(state=State.BROKEN)),
        make_view("unknown", info=None),
        make_view("other", info=replace(MODEL, digest="sha256:1")),
        make_view("short", limits=replace(LIMITS, context=63)),
        make_view("avoided", epoch=77),
    ]
    for number in range(20):
        want = make_want(bytes([number]), avoid=frozenset([77]))
        assert picked([*bad, good], want) == "good"
        assert pick(bad, want) is None


def test_an_adapter_must_be_there() -> None:
    views = [make_view("plain"), make_view("tuned", load=500, adapters=("sql",))]
    assert picked(views, make_want(adapter="sql")) == "tuned"
    assert pick(views, make_want(adapter="other")) is None


def test_without_room_the_least_loaded_is_judged() -> None:
    views = [make_view("a", load=950), make_view("b", load=940), make_view("c", load=960)]
    for number in range(20):
        assert picked(views, make_want(bytes([number]), pages=100)) == "b"


def test_room_is_measured_against_the_mark_of_the_lane() -> None:
    views = [make_view("full", load=850), make_view("free", load=700)]
    for number in range(20):
        assert picked(views, make_want(bytes([number]), pages=100, mark=0.9)) == "free"


def test_small_sequences_fill_an_engine_too() -> None:
    """Equal prompts must not queue at their home while another engine has nothing to do."""
    views = [make_view("a"), make_view("b")]
    home = pick(views, make_want())
    assert home is not None
    home.stats = make_stats(running=LIMITS.max_running // 2)
    assert pick(views, make_want()) is not home
