"""The house: links, layers, and the standard library's tokenize."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("mixture", "tokenize", "stream", "audit", "train")
FOLDERS = (*LAYERS, "recipes")
SHARED = {"errors", "canonical", "files", "places", "html", "__version__"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_is_linked_into_the_package(folder: str) -> None:
    link = ROOT / "src" / "millstream" / folder
    assert link.is_symlink(), "a checkout without symbolic links cannot be developed in"
    assert link.readlink() == Path("..") / ".." / folder
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_standard_librarys_tokenize_wins_at_the_root() -> None:
    code = "import tokenize, inspect; print(tokenize.__file__); import millstream.tokenize.manifest"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert str(ROOT) not in done.stdout


def imports_of(path: Path) -> set[str]:
    """Second parts of every ``millstream.X`` that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("millstream.")}
        if isinstance(node, ast.ImportFrom) and node.module == "millstream":
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_those_below(layer: str) -> None:
    below = set(LAYERS[: LAYERS.index(layer) + 1]) | SHARED
    for path in sorted((ROOT / layer).rglob("*.py")):
        assert imports_of(path) <= below, f"{path.relative_to(ROOT)} imports upwards"


def module_level_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[0] for name in names}


def test_building_and_auditing_need_no_torch() -> None:
    allowed = {ROOT / "stream" / "torch_data.py"}
    for layer in LAYERS[:-1]:
        for path in sorted((ROOT / layer).rglob("*.py")):
            if path not in allowed:
                assert not module_level_imports(path) & {"torch", "deepspeed"}, path
    code = "import sys; import millstream.cli; sys.exit(any(m in sys.modules for m in ('torch', 'deepspeed', 'spacy')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_is_too_long() -> None:
    for folder in (*LAYERS, "src/millstream", "tests", "benchmarks"):
        for base, _, names in os.walk(ROOT / folder):
            for name in names:
                if name.endswith(".py"):
                    path = Path(base) / name
                    assert len(path.read_text().splitlines()) <= 600, path
