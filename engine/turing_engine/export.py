"""A model's assets as files, for gateways that render without an engine."""

from pathlib import Path

from turing_engine.assets import Assets, load_assets, named
from turing_engine.locate import locate
from turing_engine.run.scripted import PREFIX, scripted_files, scripted_info
from turing_engine.settings import EngineSettings
from turing_protocol.errors import Code, TuringError
from turing_protocol.folder import INFO_FILE, info_to_json


def export(settings: EngineSettings, folder: Path) -> None:
    """Write what an engine with ``settings`` would serve to gateways into ``folder``.

    The folder is made if need be; files in it are replaced. No weights are loaded. What is wrong
    with the model or the folder is ``Code.INVALID``.
    """
    assets = _assets(settings)
    info = named(assets.info, settings.served_name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in {**assets.files, INFO_FILE: info_to_json(info)}.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        words = f"cannot write to {folder}: {error.strerror}"
        raise TuringError(Code.INVALID, words, param="write_assets") from None


def _assets(settings: EngineSettings) -> Assets:
    reference = settings.model
    if reference is not None and reference.startswith(PREFIX):
        return Assets(scripted_info(reference), scripted_files(reference))
    return load_assets(locate(reference, hf_home=settings.hf_home))
