"""Pages that must agree with the code."""

import re
from pathlib import Path

import pytest

from scripts import cli_docs, structure_docs
from shape.tree import ROOT, modules

STRUCTURE = (ROOT / "docs" / "structure.md").read_text()


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert cli_docs.PAGE.read_text() == cli_docs.page(), "run `make docs`"


def test_the_page_of_modules_is_what_the_modules_say() -> None:
    assert structure_docs.PAGE.read_text() == structure_docs.page(), "run `make docs`"


def test_structure_names_every_module() -> None:
    named = set(re.findall(r"`([\w./-]+\.py)`", STRUCTURE))
    ours = {
        str(path.relative_to(ROOT)) for path in modules().values() if path.name != "__init__.py"
    }
    assert ours - named == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_files_that_a_page_names_exist(page: Path) -> None:
    folders = "protocol|gateway|engine|kernels|tests|bench|scripts|deploy|docs"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
