"""``X-Turing-*`` headers, in and out."""

import msgspec
import pytest
from starlette.datastructures import Headers

from fakes.generator import begin
from turing_gateway.headers import (
    Controls,
    ControlsBody,
    effective_headers,
    merged,
    read_headers,
)
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.sampling import Knobs


def test_nothing_is_set_without_headers() -> None:
    assert read_headers(Headers()) == Controls()
    assert Controls().knobs == Knobs(sparsity=None, svd_kv=None, draft_tokens=None)


def test_every_header_is_read_whatever_its_case() -> None:
    given = {
        "X-TURING-LANE": " Batch ",
        "x-turing-sparsity": "0.57",
        "x-turing-svd-kv": "0",
        "x-turing-draft-tokens": "8",
        "x-turing-tenant-id": "sql.v2",
        "x-turing-strict": "1",
    }
    assert read_headers(Headers(given)) == Controls(Lane.BATCH, Knobs(0.57, 0, 8), "sql.v2", True)


def test_strictness_may_be_switched_off() -> None:
    assert read_headers(Headers({"x-turing-strict": "0"})) == Controls()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Turing-Lane", "express"),
        ("X-Turing-Lane", ""),
        ("X-Turing-Sparsity", "0.76"),
        ("X-Turing-Sparsity", "-0.1"),
        ("X-Turing-Sparsity", "nan"),
        ("X-Turing-Sparsity", "1e-1"),
        ("X-Turing-Sparsity", ""),
        ("X-Turing-Strict", "2"),
        ("X-Turing-Strict", "yes"),
        ("X-Turing-SVD-KV", "2"),
        ("X-Turing-SVD-KV", "true"),
        ("X-Turing-SVD-KV", "0.5"),
        ("X-Turing-Draft-Tokens", "-1"),
        ("X-Turing-Draft-Tokens", "65"),
        ("X-Turing-Draft-Tokens", "٣"),
        ("X-Turing-Tenant-ID", ""),
        ("X-Turing-Tenant-ID", "../../etc"),
        ("X-Turing-Tenant-ID", "/etc/passwd"),
        ("X-Turing-Tenant-ID", "a%2f..%2fb"),
        ("X-Turing-Tenant-ID", "a\x00b"),
        ("X-Turing-Tenant-ID", "a" * 129),
        ("X-Turing-Sparsty", "0.5"),
        ("X-Turing-Queue-Depth", "1"),
    ],
)
def test_a_malformed_header_is_named(name: str, value: str) -> None:
    with pytest.raises(TuringError) as caught:
        read_headers({name: value})
    assert caught.value.code is Code.INVALID
    assert caught.value.param == name


def test_the_answer_tells_what_the_engine_applied() -> None:
    applied = begin(sparsity=0.5, svd_kv=1, draft_tokens=4, kv_utilization=0.25, queue_depth=3)
    assert effective_headers(Lane.BACKGROUND, applied) == {
        "X-Turing-Lane": "background",
        "X-Turing-Sparsity": "0.5",
        "X-Turing-SVD-KV": "1",
        "X-Turing-Draft-Tokens": "4",
        "X-Turing-KV-Utilization": "0.2500",
        "X-Turing-Queue-Depth": "3",
    }


FULL = Controls(Lane.BATCH, Knobs(0.5, 1, 3), "sql", True)


def test_a_body_that_sets_nothing_changes_nothing() -> None:
    assert merged(FULL, ControlsBody()) == FULL
    assert merged(Controls(), ControlsBody()) == Controls()


def test_what_a_body_sets_wins_over_headers() -> None:
    body = ControlsBody(
        lane="background", sparsity=0.0, svd_kv=0, draft_tokens=0, tenant_id="b", strict=False
    )
    assert merged(FULL, body) == Controls(Lane.BACKGROUND, Knobs(0.0, 0, 0), "b", False)


@pytest.mark.parametrize("name", ControlsBody.__struct_fields__)
def test_every_field_of_a_body_is_a_header(name: str) -> None:
    value = {"lane": "batch", "sparsity": "0.5", "tenant_id": "a"}.get(name, "1")
    header = "X-Turing-" + name.replace("_", "-")
    body = msgspec.convert({name: value}, ControlsBody, strict=False)
    assert merged(Controls(), body) == read_headers(Headers({header: value})) != Controls()
