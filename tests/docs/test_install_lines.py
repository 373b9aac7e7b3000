"""The package index has another project by our name: nobody is told to install it from there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROM_THE_INDEX = re.compile(r"pip install[^\n]*?[\s'\"]machop(?![\w./-])")


def test_nothing_says_to_install_our_name_from_the_index() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.*")]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (*pages, *sources)
        if path.suffix in (".md", ".py", ".ipynb")
        for match in FROM_THE_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_what_is_looked_for() -> None:
    assert FROM_THE_INDEX.search("pip install 'machop[onnx]'")
    assert FROM_THE_INDEX.search("pip install --no-deps machop\n")
    assert not FROM_THE_INDEX.search("pip install dist/machop-0.1.0-py3-none-any.whl")
