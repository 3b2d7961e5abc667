"""What a gateway measures itself."""

import re
from typing import Any

import pytest

from fakes.generator import Gateway, begin, fails, finish, hello
from turing_gateway.call import Call, Event, Failure, TextDelta
from turing_protocol.errors import Code, TuringError

SAMPLE = re.compile(r"^(?P<name>[a-z0-9_:]+)(\{(?P<labels>.*)\})? (?P<value>\S+)$")


def samples(gateway: Gateway) -> dict[str, float]:
    """Return the value of every series by its line up to the value."""
    found = {}
    for line in gateway.metrics.expose().decode().splitlines():
        match = SAMPLE.match(line)
        if match:
            found[line.rpartition(" ")[0]] = float(match["value"])
    return found


def labelled(name: str, **labels: str) -> str:
    """Return a series as the exposition writes it."""
    given: dict[str, Any] = {"lane": "interactive", "model_name": "fake"} | labels
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(given.items())) + "}"


def test_an_answer_is_measured_from_its_request_to_its_end() -> None:
    gateway = Gateway()
    gateway.chat(n=2)
    found = samples(gateway)
    assert found[labelled("turing_time_to_first_token_seconds_count")] == 1
    assert found[labelled("turing_inter_token_latency_seconds_count")] == 2
    assert found[labelled("turing_e2e_request_latency_seconds_count")] == 1
    assert found[labelled("turing_request_queue_time_seconds_count")] == 2
    assert found[labelled("turing_request_queue_time_seconds_sum")] == pytest.approx(0.014)
    assert found[labelled("turing_request_success_total", finished_reason="stop")] == 2
    assert labelled("turing_request_abort_total") not in found


def test_every_family_has_help_and_a_type_and_no_creation_times() -> None:
    gateway = Gateway()
    gateway.chat()
    text = gateway.metrics.expose().decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    for series in samples(gateway):
        family = re.sub(r"\{.*", "", series)
        assert family in names or re.sub(r"_(bucket|sum|count)$", "", family) in names
    assert "_created" not in text


@pytest.mark.parametrize(
    ("code", "shed"), [(Code.OVERLOADED, 1), (Code.SHED, 1), (Code.NO_ENGINE, 0), (Code.INVALID, 0)]
)
def test_refusals_are_counted_by_code_and_those_for_load_as_shed(code: Code, shed: int) -> None:
    gateway = Gateway(fails(code))
    gateway.chat()
    found = samples(gateway)
    assert found[labelled("turing_request_failure_total", code=code.name.lower())] == 1
    assert found["turing_admission_shed_total"] == shed
    assert found.get(labelled("turing_lane_shed_total"), 0) == shed
    assert found.get(labelled("turing_request_abort_total"), 0) == 0


def test_a_choice_that_fails_is_a_failure_and_not_an_abort() -> None:
    def script(call: Call) -> list[Event]:
        return [begin(), begin(1), Failure(1, TuringError(Code.ENGINE_LOST, "lost"))]

    gateway = Gateway(script)
    gateway.chat(n=2)
    found = samples(gateway)
    assert found[labelled("turing_request_failure_total", code="engine_lost")] == 1
    assert labelled("turing_request_abort_total") not in found


def test_tokens_that_come_together_share_the_gap_before_them() -> None:
    def script(call: Call) -> list[Event]:
        return [begin(), TextDelta(0, "a", (1,)), TextDelta(0, "bcd", (2, 3, 4)), finish()]

    gateway = Gateway(script)
    gateway.chat()
    assert samples(gateway)[labelled("turing_inter_token_latency_seconds_count")] == 1


def test_the_admission_counter_is_there_before_anything_is_shed() -> None:
    assert samples(Gateway(hello))["turing_admission_shed_total"] == 0
