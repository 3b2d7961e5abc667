"""The list of models, for OpenAI's and Anthropic's clients at once."""

from datetime import UTC, datetime

from msgspec.structs import replace

from fakes.generator import Gateway
from fakes.wire import MODEL

ALIASED = replace(MODEL, aliases=("claude-fake", "org/fake"), modified=1_700_000_000.75)


def test_an_entry_serves_both_apis() -> None:
    entry = Gateway(models=[ALIASED]).client.get("/v1/models/claude-fake").json()
    assert entry == {
        "id": "claude-fake",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "turing",
        "root": "fake",
        "parent": None,
        "max_model_len": 4096,
        "type": "model",
        "display_name": "claude-fake",
        "created_at": "2023-11-14T22:13:20+00:00",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
    }
    created = datetime.fromisoformat(entry["created_at"])
    assert created == datetime.fromtimestamp(1_700_000_000, UTC)


def test_everything_is_on_one_page() -> None:
    page = Gateway(models=[ALIASED]).client.get("/v1/models?limit=1").json()
    assert [entry["id"] for entry in page["data"]] == ["fake", "claude-fake", "org/fake"]
    assert (page["object"], page["has_more"]) == ("list", False)
    assert (page["first_id"], page["last_id"]) == ("fake", "org/fake")


def test_a_page_of_nothing_has_no_ends() -> None:
    page = Gateway(models=[]).client.get("/v1/models").json()
    assert (page["data"], page["first_id"], page["last_id"]) == ([], None, None)


def test_an_id_may_hold_slashes() -> None:
    client = Gateway(models=[ALIASED]).client
    assert client.get("/v1/models/org/fake").json()["id"] == "org/fake"
    assert client.get("/v1/models/org%2Ffake").json()["id"] == "org/fake"
    assert client.get("/v1/models/none").status_code == 404
