"""No document, script or example names the Python package as another project on PyPI is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Folders that builds and tools leave in the tree.
LEFT_OUT = {".git", "target", "artifacts", "corpus", "node_modules", "__pycache__", ".pytest_cache", ".mypy_cache"}
PACKAGE = r"(?<![\w./$-])portcullis(?![\w/-])(?!\.(?:sock|conf|service|pem|h|hpp|pc)\b)"
WRONG = {
    "installs PyPI's portcullis": re.compile(
        rf"\bpip[\d.]*[\"']?\)? (?:[^\n#|;&`]* )?(?:install|download|wheel)\b[^\n#|;&`]*?[ '\"]{PACKAGE}"
    ),
    "imports portcullis": re.compile(rf"\bimport(?: [\w.]+,)* {PACKAGE}(?! ?[{{:;])|\bfrom {PACKAGE}[\w.]* import\b"),
    "names a module of portcullis": re.compile(
        rf"{PACKAGE}\.(?:connect|Node|Session|errors|lmcache|_native|aio|structures|typing)\b(?! ?=)"
        rf"|(?:-m|stubtest|import_module\(|module = |importorskip\() ?[\"']?{PACKAGE}"
    ),
    "requires portcullis": re.compile(
        rf"^(?:name = |dependencies = \[.*|requires = \[.*)[\"']{PACKAGE}(?=[\"'\[=<>~!])", re.MULTILINE
    ),
}


def wrong_lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", text)
    return [f"{what}: {found[0]}" for what, pattern in WRONG.items() for found in pattern.finditer(joined)]


def documents() -> list[Path]:
    """Returns the files in the tree that people read or run.

    Cargo's files are not among them: the name is that of Rust's crates.
    """
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [Path(folder, name) for name in names]
    kinds = {"", ".md", ".txt", ".py", ".pyi", ".rst", ".json", ".yml", ".yaml", ".sh", ".rs", ".ipynb"}
    return [
        path
        for path in found
        if (path.suffix in kinds or path.name == "pyproject.toml") and path != Path(__file__).resolve()
    ]


@pytest.mark.parametrize(
    "line",
    [
        "pip install portcullis",
        "pip install lmcache portcullis",
        "python3 -m pip install -q 'portcullis[test]'",
        '"$venv/bin/pip" install portcullis==0.1',
        "pip3 install --upgrade \\\n    portcullis",
        "import portcullis",
        ">>> import portcullis",
        "import os, sys, portcullis",
        "import portcullis as pc",
        "from portcullis import aio",
        "from portcullis.errors import Error",
        'python3 -c "import portcullis"',
        "with portcullis.connect(address) as session:",
        '"module_path": "portcullis.lmcache",',
        'module = "portcullis"',
        'name = "portcullis"',
    ],
)
def test_a_wrong_line_is_found(line):
    assert wrong_lines(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install ./bindings/python",
        "pip install FOLDER/portcullis_memory-*.whl",
        "pip install 'portcullis-memory[test]'",
        "import portcullis_memory",
        "from portcullis_memory.errors import Error",
        "portcullis serve --memory 1GiB --listen shm:/run/portcullis.sock",
        "portcullis.workspace = true",
        "use portcullis::{Error, Keep};",
        "pip install lmcache\nportcullis serve",
    ],
)
def test_a_right_line_is_none_of_them(line):
    assert not wrong_lines(line)


def test_no_document_script_or_example_has_a_wrong_line():
    found = documents()
    names = {str(path.relative_to(ROOT)) for path in found}
    assert {"README.md", "scripts/wheel", "docs/examples/lmcache.json", "bindings/python/pyproject.toml"} <= names
    wrong = {}
    for path in found:
        lines = wrong_lines(path.read_text(errors="replace"))
        if lines:
            wrong[str(path.relative_to(ROOT))] = lines
    assert not wrong
