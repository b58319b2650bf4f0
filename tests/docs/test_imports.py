"""What the documents import from Tenure exists."""

import importlib
import re
from pathlib import Path

from tests.support.cases import each_case

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_IMPORT = re.compile(r"^ *from (tenure[\w.]*) import ([\w, ]+)$", re.MULTILINE)
IMPORTS = sorted(
    {
        (page.relative_to(ROOT).as_posix(), module, name)
        for page in PAGES
        for module, names in _IMPORT.findall(page.read_text())
        for name in names.split(", ")
    }
)


@each_case(("page", "module", "name"), IMPORTS)
def test_an_import_in_a_document_works(page: str, module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name), f"{page} imports it"
