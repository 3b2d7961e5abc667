"""The real small model's text, shared by the tests of this folder."""

import pytest
from hypothesis import settings

from turing_engine.assets import Assets, load_assets
from turing_engine.locate import locate
from turing_gateway.text.model import TextModel

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def assets() -> Assets:
    """Return facts and files of SmolLM2."""
    return load_assets(locate(None))


@pytest.fixture(scope="session")
def smollm(assets: Assets) -> TextModel:
    """Return SmolLM2's text model."""
    return TextModel(assets.info, assets.files)
