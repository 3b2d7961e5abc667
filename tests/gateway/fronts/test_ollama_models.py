"""Facts of models as Ollama's clients read them."""

import asyncio
import re
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.requests import Request

from fakes.generator import FakeGenerator, Gateway, make_view
from fakes.wire import ASSETS, LIMITS, MODEL, make_stats
from turing_gateway.fleet.view import LinkState
from turing_gateway.fronts.base import Services
from turing_gateway.fronts.ollama_models import OllamaModels
from turing_gateway.metrics import Metrics
from turing_protocol.messages import Limits, ModelInfo
from turing_protocol.prefix import PAGE

SMOL = replace(
    MODEL,
    name="SmolLM2",
    aliases=("hub/SmolLM2",),
    digest="sha256:" + "ab" * 32,
    architecture="llama",
    parameters=134515008,
    size_bytes=98362432,
    quantization="Q4_1",
    modified=1731628800.5,
    embedding_length=576,
    format="gguf",
)
DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "134.52M",
    "quantization_level": "Q4_1",
}


def smol(*views: Any) -> Gateway:
    return Gateway(models=[SMOL], views=views or [make_view(info=SMOL)])


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
def test_probes_need_no_body(path: str) -> None:
    client = Gateway().client
    assert client.head(path).status_code == client.get(path).status_code == 200


def test_the_root_says_the_words() -> None:
    assert Gateway().client.get("/").text == "Ollama is running"


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("0.3.1", "0.3.1"),
        ("0.3.1+local", "0.3.1"),
        ("1.2.3.dev4", "1.2.3"),
        ("source", "0.0.0-source"),
    ],
)
def test_a_version_is_three_numbers(build: str, said: str) -> None:
    generator = FakeGenerator()
    services = Services(generator, Metrics(list).watch, list, lambda: True, build)
    (route,) = [r for r in OllamaModels(services).routes() if r.path == "/api/version"]
    response = asyncio.run(route.endpoint(Request({"type": "http"})))
    assert response.body == b'{"version":"%s"}' % said.encode()


def test_tags_list_every_name_with_the_facts_of_its_files() -> None:
    models = smol().client.get("/api/tags").json()["models"]
    assert [model["name"] for model in models] == ["SmolLM2:latest", "hub/SmolLM2:latest"]
    assert models[0] == {
        "name": "SmolLM2:latest",
        "model": "SmolLM2:latest",
        "modified_at": "2024-11-15T00:00:00.500000Z",
        "size": 98362432,
        "digest": "ab" * 32,
        "details": DETAILS,
    }


def test_no_model_is_an_empty_list() -> None:
    client = Gateway(models=[], views=[]).client
    assert client.get("/api/tags").json() == client.get("/api/ps").json() == {"models": []}


@pytest.mark.parametrize("key", ["model", "name"])
@pytest.mark.parametrize("name", ["SmolLM2", "smollm2:latest", "hub/smollm2"])
def test_show_tells_what_the_files_say(key: str, name: str) -> None:
    said = smol().post("/api/show", {key: name}).json()
    assert said["details"] == DETAILS
    assert said["template"] == ASSETS["chat_template"].decode()
    assert said["capabilities"] == ["completion", "tools"]
    assert said["modified_at"] == "2024-11-15T00:00:00.500000Z"
    assert said["model_info"] == {
        "general.architecture": "llama",
        "general.basename": "SmolLM2",
        "general.parameter_count": 134515008,
        "llama.context_length": 4096,
        "llama.embedding_length": 576,
        "llama.vocab_size": MODEL.vocab_size,
    }
    assert said["modelfile"].startswith("FROM SmolLM2\nPARAMETER num_ctx")
    assert "license" not in said


def test_parameters_are_lines_of_name_and_value() -> None:
    said = smol().post("/api/show", {"model": "SmolLM2"}).json()
    context, *stops = said["parameters"].split("\n")
    assert context.split() == ["num_ctx", str(LIMITS.context)]
    assert len(stops) == len(SMOL.eos_ids)
    assert all(re.fullmatch(r'stop\s+".+"', line) for line in stops)


def files(**more: bytes) -> Any:
    async def give(model: str) -> dict[str, bytes]:
        return ASSETS | more

    return give


def test_show_passes_on_the_metadata_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = smol()
    metadata = b'{"general.license":"apache-2.0","general.basename":"smol","llama.block_count":30}'
    monkeypatch.setattr(gateway.generator, "files", files(metadata=metadata))
    said = gateway.post("/api/show", {"model": "SmolLM2"}).json()
    assert said["license"] == "apache-2.0"
    assert said["model_info"]["general.basename"] == "smol"
    assert said["model_info"]["llama.block_count"] == 30
    assert said["model_info"]["general.parameter_count"] == 134515008


def test_a_model_that_thinks_says_so() -> None:
    gateway = smol()
    gateway.generator.thinking = True
    said = gateway.post("/api/show", {"model": "SmolLM2"}).json()
    assert said["capabilities"] == ["completion", "tools", "thinking"]


def test_a_model_without_a_template_does_not_claim_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = smol()
    monkeypatch.setattr(gateway.generator, "files", files(chat_template=b""))
    said = gateway.post("/api/show", {"model": "SmolLM2"}).json()
    assert (said["template"], said["capabilities"]) == ("", ["completion"])


def test_show_of_an_unknown_model() -> None:
    reply = smol().post("/api/show", {"model": "nope"})
    assert reply.status_code == 404
    assert "'nope' not found" in reply.json()["error"]
    assert smol().post("/api/show", {}).status_code == 400


def stats(used: int) -> Any:
    return replace(make_stats(), memory_used=used, memory_total=10 * used)


def test_ps_adds_up_the_memory_of_the_engines_that_are_up() -> None:
    gateway = smol(
        make_view(info=SMOL, stats=stats(1000)),
        make_view(info=SMOL, stats=stats(200)),
        make_view(info=SMOL, stats=stats(30), state=LinkState.LOST),
        make_view(info=MODEL, stats=stats(4)),
    )
    (model,) = gateway.client.get("/api/ps").json()["models"]
    assert re.fullmatch(r"2\d{3}-.*\.\d{6}Z", model.pop("expires_at"))
    assert model == {
        "name": "SmolLM2:latest",
        "model": "SmolLM2:latest",
        "digest": "ab" * 32,
        "details": DETAILS,
        "size": 1200,
        "size_vram": 0,
        "context_length": LIMITS.context,
    }


def test_ps_tells_what_a_gpu_holds() -> None:
    limits: Limits = replace(LIMITS, device="cuda", pages_total=10)
    gateway = smol(make_view(info=SMOL, limits=limits, stats=stats(0)))
    (model,) = gateway.client.get("/api/ps").json()["models"]
    assert model["size"] == model["size_vram"] == SMOL.size_bytes + 10 * PAGE


def test_a_model_whose_engines_are_away_does_not_run() -> None:
    gateway = smol(make_view(info=SMOL, state=LinkState.LOST))
    assert gateway.client.get("/api/ps").json() == {"models": []}
    assert len(gateway.client.get("/api/tags").json()["models"]) == 2


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1500, "2K"),
        (134515008, "134.52M"),
        (135000000, "135M"),
        (1711376384, "1.7B"),
        (7000000000, "7B"),
    ],
)
def test_parameters_are_counted_as_ollama_does(count: int, text: str) -> None:
    info: ModelInfo = replace(SMOL, parameters=count)
    gateway = Gateway(models=[info], views=[])
    (first, _) = gateway.client.get("/api/tags").json()["models"]
    assert first["details"]["parameter_size"] == text


@pytest.mark.parametrize(
    ("stored", "said"), [("bfloat16", "BF16"), ("F16", "F16"), ("BF16", "BF16")]
)
def test_storage_types_have_ggufs_names(stored: str, said: str) -> None:
    gateway = Gateway(models=[replace(SMOL, quantization=stored)], views=[])
    (first, _) = gateway.client.get("/api/tags").json()["models"]
    assert first["details"]["quantization_level"] == said
