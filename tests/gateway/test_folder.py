"""A gateway that renders from a folder, with no engine anywhere."""

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fakes.wire import ASSETS, MODEL
from turing_gateway.app import build_app
from turing_gateway.call import Call, Failure, Message
from turing_gateway.drain import Drain
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.folder import Folder
from turing_gateway.generate import Generator
from turing_gateway.metrics import Metrics
from turing_gateway.settings import GatewaySettings
from turing_gateway.text.model import TextModel
from turing_gateway.text.pool import TextPool
from turing_protocol.errors import Code, TuringError
from turing_protocol.folder import ASSET_FILES, INFO_FILE, info_to_json

CALL = Call(model="fake", messages=(Message(role="user", content="hi"),))
CHAT = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
GENERATIONS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "fake", "prompt": "hi"},
    "/v1/responses": {"model": "fake", "input": "hi"},
    "/v1/messages": CHAT,
    "/api/chat": CHAT,
    "/api/generate": {"model": "fake", "prompt": "hi"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as an engine writes it."""
    for name, data in {**ASSETS, INFO_FILE: info_to_json(MODEL)}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def make_generator(folder: Path) -> Generator:
    return Generator(Fleet(()), TextPool(), catalog=Folder(folder))


def test_the_engine_writes_what_the_folder_holds() -> None:
    assert set(ASSETS) == set(ASSET_FILES)


def test_the_model_of_the_folder_is_served(folder: Path) -> None:
    generator = make_generator(folder)
    assert generator.models() == [MODEL]
    with pytest.raises(TuringError) as caught:
        generator.find("other")
    assert caught.value.code is Code.MODEL_NOT_FOUND


def test_it_renders_what_an_engine_would_prefill(folder: Path) -> None:
    ids = asyncio.run(make_generator(folder).render(CALL))
    assert ids == TextModel(MODEL, ASSETS).render(CALL)
    assert asyncio.run(make_generator(folder).files("fake")) == ASSETS


@pytest.mark.parametrize("path", GENERATIONS)
def test_generation_is_refused_in_each_api_s_shape(folder: Path, path: str) -> None:
    settings, drain = GatewaySettings(render_only=True), Drain()
    app = build_app(make_generator(folder), list, Metrics(list), settings, drain)
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        response = client.post(path, json=GENERATIONS[path])
        assert client.get("/health").status_code == 200
    assert response.status_code == (529 if path == "/v1/messages" else 503)
    assert "no engine is ready for fake" in response.text
    assert response.headers["retry-after"] == "2"


def test_a_run_fails_at_once(folder: Path) -> None:
    async def collect() -> list[object]:
        return [event async for event in make_generator(folder).run(CALL)]

    (failure,) = asyncio.run(collect())
    assert isinstance(failure, Failure)
    assert failure.error.code is Code.NO_ENGINE


@pytest.mark.parametrize("name", [*ASSET_FILES, INFO_FILE])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(TuringError, match=f"cannot read .*{name}: No such file") as caught:
        Folder(folder)
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "assets")


def test_a_broken_file_is_found_before_anyone_asks(folder: Path) -> None:
    (folder / "chat_template").write_text("{% if %}")
    with pytest.raises(TuringError, match="template"):
        asyncio.run(make_generator(folder).load())
