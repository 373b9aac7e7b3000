"""The rules of docs/architecture.md, held by machine."""

import ast
import re
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chop"
FILES = sorted(SOURCE.rglob("*.py"))

# Each layer may import those named after it, and itself.
BASE = (
    "errors", "masking", "registry", "validation", "files", "preprocessing", "tasks", "runs",
    "charts", "callables", "figures", "markup", "tables", "logger", "__init__",
)  # fmt: skip
MODELS_AND_DATA = ("dataset", "models")
GRAPHS = ("numerics", "ops", "nn", "ir", "lowering", "passes")
LAYERS = {
    "masking": (),
    "callables": (),
    "aliases": ("callables",),
    "errors": ("masking",),
    "registry": ("errors",),
    "validation": ("errors", "masking"),
    "files": ("errors",),
    "preprocessing": ("errors", "validation"),
    "tasks": ("errors", "preprocessing"),
    "runs": ("errors", "files", "preprocessing", "validation"),
    "charts": ("files",),
    "figures": ("tasks",),
    "logger": ("errors", "masking"),
    "markup": ("masking",),
    "tables": ("markup",),
    "numerics": BASE,
    "ops": (*BASE, "numerics"),
    "nn": (*BASE, "numerics", "ops"),
    "ir": (*BASE, "numerics", "ops", "nn"),
    "lowering": (*BASE, "numerics", "ops", "nn", "ir"),
    "export": (*BASE, "numerics", "ops", "nn", "ir", "lowering"),
    # Labs emit Verilog by a pass, so passes stand on exports; exports know no pass.
    "passes": (*BASE, "numerics", "ops", "nn", "ir", "lowering", "export"),
    "dataset": BASE,
    "models": BASE,
    "devices": BASE,
    "loading": (*BASE, *GRAPHS, *MODELS_AND_DATA, "export"),
    "training": (*BASE, *GRAPHS, *MODELS_AND_DATA, "devices", "loading"),
    "search": (*BASE, *GRAPHS, *MODELS_AND_DATA, "devices", "loading", "training", "export"),
    # Each result is one value; views show it.
    "results": (*BASE, *GRAPHS, *MODELS_AND_DATA, "loading", "training", "search", "export"),
    "views": (*BASE, *GRAPHS, *MODELS_AND_DATA, "loading", "training", "search", "results"),
    # The settings are data; they need nothing but the base.
    "config": BASE,
    # Reads every registry off, so it stands above them all but the actions.
    "catalogue": (*BASE, *GRAPHS, *MODELS_AND_DATA, "search", "config", "export"),
    "verbs": (
        *BASE, *GRAPHS, *MODELS_AND_DATA, "devices", "loading", "training", "search", "results",
        "views", "config", "catalogue", "export",
    ),
    "labs": BASE,
    "cli": (*BASE, "verbs", "config"),
    "__init__": ("aliases", "ir", "export", "search", "verbs", "config"),
}  # fmt: skip


# The rooms of a layer, the lowest first: each may import those before it.
ROOMS = {
    "search": (
        "metrics",
        "study",
        "spaces", "front",
        "samplers", "runners",
        "engines", "proposals",
        "strategy", "learned",
        "config",
        "sweeps",
        "contest",
    ),
    "training": (
        "settings",
        "results",
        "batches", "metrics", "optimisers", "checkpoint",
        "report", "job",
        "loop", "distributed", "parts",
        "fit",
        "trainer",
    ),
    "views": ("section", "svg", "sections", "page", "terminal", "progress"),
    "config": ("option", "run", "verb", "command_line", "layers", "schema"),
    "dataset": (
        "rows", "augmentation",
        "preprocess",
        "info", "tables", "cache",
        "download", "data_module",
        "inputs",
        "toy", "own", "physical", "vision",
    ),
}  # fmt: skip
REGISTERED = {("search/config.py", "sweeps")}
"""Imported for the sake of its registration: a configuration may name every space there is."""
MOST_ENTRIES = 14
MANY_ENTRIES = {
    ".": "the layers themselves",
    "verbs": "a module for each verb",
    "results": "a module for each kind of result",
    "passes/graph/transforms/quantize/quantized_modules": "an import path for each operation",
}

# The most lines of each package. A commit may raise a figure only on purpose, and says why.
BUDGET = {
    ".": 2_925, "config": 1_380, "dataset": 4_870, "export": 12_070, "ir": 5_800, "labs": 50,
    "loading": 520, "lowering": 5_000, "models": 1_705, "nn": 2_900, "numerics": 3_000,
    "ops": 2_350, "passes": 10_110, "results": 2_900, "search": 9_965, "training": 3_605,
    "verbs": 6_960, "views": 2_250,
}  # fmt: skip
CLAUSE = re.compile(r"(What|Whether|How|Where|Which|Who|Why|When|That)\b")
"""The first word of a docstring that is a clause, not a sentence or a noun."""
MOST_PARTICIPLES = 74
"""Functions whose names are a bare participle, such as `told`. Lower it as they go."""
PARTICIPLE = re.compile(
    "(?!(seed|need|feed|speed|shed|embed)$)([a-z]+ed|told|kept|shown|given|written|found|known|made"
    "|held|taken|left|seen|drawn|chosen|gone|done|lost|sent|built|bound|meant|said|laid|grown)$"
)


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "chop":  # `from chop import x`: a module or something in __init__
                names = [f"chop.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "chop":
                layer = rest.partition(".")[0]
                yield layer if layer in LAYERS else "__init__"


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_layers_import_downwards(path: Path) -> None:
    layer = layer_of(path)
    allowed = {layer, *LAYERS[layer]}
    assert set(imported_layers(path)) <= allowed


def imported_rooms(path: Path, layer: str) -> Iterator[str]:
    """The modules and folders of its own layer that a file imports when it runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = [] if node in for_types else imported_names(node)
        if isinstance(node, ast.ImportFrom) and names == [f"chop.{layer}"]:
            names = [f"chop.{layer}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith(f"chop.{layer}."):
                yield name.split(".")[2]


IN_ROOMS = [path for path in FILES if layer_of(path) in ROOMS and path.name != "__init__.py"]


@pytest.mark.parametrize("path", IN_ROOMS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_import_downwards(path: Path) -> None:
    inside = path.relative_to(SOURCE)
    layer, room = inside.parts[0], inside.parts[1].removesuffix(".py")
    below = ROOMS[layer][: ROOMS[layer].index(room)]
    stated = {each for where, each in REGISTERED if where == str(inside)}
    assert set(imported_rooms(path, layer)) <= {room, *below, *stated}


FOLDERS = sorted({path.parent for path in FILES})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_folder_shows_few_entries_and_says_what_it_holds(folder: Path) -> None:
    entries = [each for each in folder.iterdir() if each.name != "__pycache__"]
    named = folder.relative_to(SOURCE).as_posix()
    assert len(entries) <= MOST_ENTRIES or named in MANY_ENTRIES
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert said


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_relative_and_no_star_imports(path: Path) -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
    assert not [node.lineno for node in imports if node.level]
    assert not [node.lineno for node in imports if any(a.name == "*" for a in node.names)]


def test_files_are_at_most_400_lines() -> None:
    lengths = {str(p): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{path.name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, node in functions()
    }
    assert {name: length for name, length in lengths.items() if length > 50} == {}
    assert statistics.median(lengths.values()) <= 10


def test_packages_keep_their_budget_of_lines() -> None:
    lines: dict[str, int] = dict.fromkeys(BUDGET, 0)
    for path in FILES:
        package = "." if path.parent == SOURCE else layer_of(path)
        lines[package] += len(path.read_text(encoding="utf-8").splitlines())
    assert {name: count for name, count in lines.items() if count > BUDGET[name]} == {}


def test_public_names_are_defined_once() -> None:
    homes: dict[str, set[Path]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_few_functions_are_named_by_a_participle() -> None:
    named = [node.name for _, node in functions() if PARTICIPLE.match(node.name.strip("_"))]
    assert len(named) <= MOST_PARTICIPLES


def test_docstrings_are_no_clauses() -> None:
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    clauses = [
        f"{path.relative_to(SOURCE)}: {said.splitlines()[0]}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented) and CLAUSE.match(said := ast.get_docstring(node) or "")
    ]
    assert clauses == []


def test_everything_is_annotated() -> None:
    bare = []
    for path, node in functions():
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        named = [a for a in arguments if a.arg not in ("self", "cls")]
        if node.returns is None or any(a.annotation is None for a in named):
            bare.append(f"{path.name}:{node.name}")
    assert bare == []


def duplicated_windows(size: int = 6) -> list[str]:
    """Runs of `size` equal lines of code that stand in two places."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for path in FILES:
        numbered = [
            (number, " ".join(line.split()))
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        ]
        code = [(n, text) for n, text in numbered if counts_as_code(text)]
        for start in range(len(code) - size + 1):
            window = tuple(text for _, text in code[start : start + size])
            place = f"{path.relative_to(SOURCE)}:{code[start][0]}"
            if window in seen:
                found.append(f"{seen[window]} = {place}")
            seen.setdefault(window, place)
    return found


def counts_as_code(text: str) -> bool:
    is_import = text.startswith(("import ", "from "))
    return bool(text) and not text.startswith("#") and not is_import and any(map(str.isalnum, text))


def test_nothing_is_written_twice() -> None:
    assert duplicated_windows() == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda path: path.name
)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    from chop.config.layers import checked_file
    from chop.config.run import RunConfig

    assert RunConfig(**checked_file(path)).model is not None


def test_the_catalogue_is_what_the_registries_hold() -> None:
    from chop.catalogue import TOPICS, live, read_catalogue

    assert read_catalogue() == live(), "run: make catalogue"
    assert sorted(read_catalogue()) == sorted(TOPICS)
    undescribed = [
        name for topic in read_catalogue().values() for name, text in topic.items() if not text
    ]
    assert undescribed == []


def test_direct_dependencies_are_few_and_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [text.partition(">")[0] for text in project["dependencies"]]
    assert len(names) <= 15
    imported = {
        name.partition(".")[0]
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported_names(node)
    }
    used_by_others = {"tensorboard"}  # Lightning's logger writes with it
    imported |= {"pillow"} if "PIL" in imported else set()
    assert set(names) - imported == used_by_others


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    names = [re.split(r"[\[>]", text)[0].lower().replace("_", "-") for text in wanted]
    assert [name for name in names if name not in pins] == []
    assert "torch==2.13.0" in lines
    order = [line.partition("==")[0].lower() for line in lines]
    assert order == sorted(order)
