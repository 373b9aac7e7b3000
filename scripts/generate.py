"""Write every file that is generated from the code: ``make generate``.

What `ch info` lists, the JSON Schema of configuration files, and the pages of options, settings,
passes and operations. A test compares each with the code, so nothing here is edited by hand.

    python scripts/generate.py            write what has changed
    python scripts/generate.py --check    only name it, and exit with 1 if there is any
"""

import json
import sys
from pathlib import Path

import chop.passes.graph  # noqa: F401  # importing the passes fills their registry
from chop.catalogue import CATALOGUE, live, live_traits
from chop.config.schema import FILE
from chop.files import write_text
from chop.verbs.schema.document import schema, schema_text

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def generated() -> dict[Path, str]:
    """Every generated file and what it is to hold."""
    from scripts.operations_page import operations_page
    from scripts.passes_page import passes_page
    from scripts.settings_pages import cli_page, toml_page

    catalogue = live() | {"traits": live_traits()}
    return {
        CATALOGUE: json.dumps(catalogue, indent=1, ensure_ascii=False) + "\n",
        FILE: schema_text(),
        DOCS / "reference" / "cli.md": cli_page(),
        DOCS / "reference" / "toml.md": toml_page(schema()),
        DOCS / "passes.md": passes_page(),
        DOCS / "operations.md": operations_page(),
    }


def main(*, check: bool) -> int:
    """Write what is out of date, or only name it; the exit code."""
    stale = {
        path: text
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        print(f"{'out of date' if check else 'written'}: {path}")
        if not check:
            write_text(path, text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(check="--check" in sys.argv))
