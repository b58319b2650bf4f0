"""Vendored files are those of their packages, unmodified."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "tenure" / "dashboard" / "static" / "vendor"
BROWSER = ROOT / "tests" / "browser" / "vendor"

VENDORED = {
    # npm htmx.org 2.0.11, 0BSD
    STATIC / "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    STATIC / "htmx.LICENSE.txt": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    # npm uplot 1.6.32, MIT
    STATIC
    / "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    STATIC / "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    STATIC
    / "uPlot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    # npm axe-core 4.14.0, MPL-2.0: only for tests
    BROWSER / "axe.min.js": "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878",
    BROWSER / "axe.LICENSE.txt": "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
}
VERSIONS = "VERSIONS.txt"


def test_every_vendored_file_is_listed_and_unmodified() -> None:
    found = {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in (STATIC, BROWSER)
        for path in folder.iterdir()
        if path.name != VERSIONS
    }

    assert found == VENDORED


def test_their_versions_stand_beside_them() -> None:
    assert "htmx.org 2.0.11" in (STATIC / VERSIONS).read_text()
    assert "uplot 1.6.32" in (STATIC / VERSIONS).read_text()
    assert "axe-core 4.14.0" in (BROWSER / VERSIONS).read_text()
