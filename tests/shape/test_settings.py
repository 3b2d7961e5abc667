"""Settings stay few enough to read."""

from turing_engine.settings import EngineSettings
from turing_gateway.cli.options import SETTINGS
from turing_gateway.settings import GatewaySettings

MOST_GATEWAY = 30
MOST_ENGINE = 45
MOST_IN_ALL = 75


def test_settings_are_few() -> None:
    gateway, engine = GatewaySettings.__struct_fields__, EngineSettings.__struct_fields__
    ours = [setting.key for setting in SETTINGS if not setting.to]
    assert len(gateway) <= MOST_GATEWAY
    assert len(engine) <= MOST_ENGINE
    assert len(gateway) + len(engine) + len(ours) <= MOST_IN_ALL


def test_what_turing_passes_on_is_a_setting_there() -> None:
    fields = {
        "engine": set(EngineSettings.__struct_fields__),
        "gateway": set(GatewaySettings.__struct_fields__),
    }
    unknown = [
        (program, setting.key)
        for setting in SETTINGS
        for program in setting.to
        if setting.key not in fields[program]
    ]
    assert unknown == []
