"""What the source of the package must not contain, found by walking its syntax trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "chop"
UNPICKLING = frozenset(
    {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve",
     "jsonpickle", "copyreg"}
)  # fmt: skip
RUNNING = frozenset({"code", "codeop", "pty", "runpy", "commands", "ctypes"})
FETCHING = frozenset(
    {
        "urllib.request",
        "http.client",
        "ftplib",
        "requests",
        "httpx",
        "socket",
        "telnetlib",
        "smtplib",
        "huggingface_hub",
        "transformers",
        "datasets",
    }
)
MODULES = {
    **dict.fromkeys(UNPICKLING, "reads pickles, which run code"),
    **dict.fromkeys(RUNNING, "runs code or programs"),
    **dict.fromkeys(FETCHING, "fetches what nobody has verified"),
}
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
CALLS = {
    "os.system": "runs a shell", "os.popen": "runs a shell", "os.execv": "runs a program",
    "os.execve": "runs a program", "os.execvp": "runs a program", "os.spawnv": "runs a program",
    "os.posix_spawn": "runs a program", "subprocess.getoutput": "runs a shell",
    "subprocess.getstatusoutput": "runs a shell", "yaml.load": "runs constructors",
    "yaml.unsafe_load": "runs constructors", "yaml.full_load": "runs constructors",
    "torch.hub.load": "fetches and runs code", "torch.hub.load_state_dict_from_url": "fetches",
    "torch.jit.load": "loads code", "torch.package.PackageImporter": "loads code",
    "pandas.read_pickle": "reads a pickle", "importlib.reload": "runs a module again",
}  # fmt: skip
MUST_SAY = {
    "torch.load": ("weights_only", True),
    "numpy.load": ("allow_pickle", False),
    "numpy.save": ("allow_pickle", False),
}
"""Calls that are safe only with this keyword, written out."""
MUST_DECIDE = {"chop.models.get_model": "fetch", "chop.models.info.get_model": "fetch"}
"""Calls that say whether a name may leave this machine."""
DYNAMIC = frozenset({"importlib.import_module", "importlib.util.spec_from_file_location"})
"""Calls that load a module whose name is worked out."""
ALLOWED = {
    ("dataset/download.py", "urllib.request"): "the only place that fetches, and it verifies",
    ("dataset/download.py", "http.client"): "names of the errors of fetching",
    ("models/hub.py", "huggingface_hub"): "the only place that asks a hub, for what the user names",
    ("models/hf.py", "transformers"): "offline, in chop.models.hub's words",
    ("loading/tokenized.py", "datasets"): "a data set that a call names",
    ("loading/user_code.py", "importlib.import_module"): "what --import names",
    ("loading/user_code.py", "importlib.util.spec_from_file_location"): "what --import names",
    ("search/engines/ray.py", "pickle"): "what a search sends to its own tasks, as Ray itself does",
    ("labs/actions.py", "importlib.import_module"): "names from the table of actions",
    ("config/verb.py", "importlib.import_module"): "the function that a verb of ours names",
    ("verbs/__init__.py", "importlib.import_module"): "the modules of the same folder",
    ("__init__.py", "importlib.import_module"): "the package chop.export, when it is asked for",
    ("export/onnx/write/code.py", "importlib.import_module"): "names that are written in the code",
    ("callables.py", "importlib.import_module"): "names that packages of ours give",
    ("aliases.py", "importlib.import_module"): "names from a table in the same file",
    ("search/__init__.py", "importlib.import_module"): "names from a table in the same file",
    ("search/strategy.py", "importlib.import_module"): "the class that a registered setup names",
    ("labs/tools.py", "importlib.import_module"): "names from a table in the same file",
    ("search/study/workers.py", "socket"): "the name of this machine",
}
"""What one file may do, and why."""


@dataclass(frozen=True)
class Finding:
    """Something in the source that must not be there."""

    file: str
    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} {self.why}"


def search(root: Path = SOURCE) -> tuple[int, list[Finding]]:
    """How many files there are below a folder, and what is wrong with them."""
    files = sorted(root.rglob("*.py"))
    found: list[Finding] = []
    for path in files:
        name = path.relative_to(root).as_posix()
        found += findings(path.read_text(encoding="utf-8"), name)
    return len(files), found


def findings(text: str, name: str) -> list[Finding]:
    """What is wrong with one file."""
    tree = ast.parse(text)
    known = names_in(tree)
    problems = [
        Finding(name, getattr(node, "lineno", 0), what, why)
        for node in ast.walk(tree)
        for what, why in (*imported(node), *used(node, known), *called(node, known))
    ]
    return [each for each in problems if (name, each.what) not in ALLOWED]


def names_in(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: ``np`` for ``numpy``, ``load`` for ``torch.load``."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return known


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """The full name of ``a.b.c``, imported names spelt out; empty for anything else."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, known)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Imports of modules that must not be there, anywhere in a file."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        return
    for module, why in MODULES.items():
        if any(name == module or name.startswith(f"{module}.") for name in names):
            yield module, why


def used(node: ast.AST, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Names that must not even be mentioned, so that an alias does not hide a call."""
    is_read = isinstance(node, ast.Name) and isinstance(
        node.ctx, ast.Load
    )  # a field may be so called
    if isinstance(node, ast.Name) and is_read and node.id in BUILTINS and node.id not in known:
        yield node.id, "runs code"
    if isinstance(node, ast.Attribute | ast.Name):
        name = dotted(node, known)
        if name in CALLS:
            yield name, CALLS[name]
        if name.startswith("builtins.") and name.partition(".")[2] in BUILTINS:
            yield name, "runs code"
    if isinstance(node, ast.Constant) and node.value in BUILTINS:
        yield f"the text {node.value!r}", "may lead to code that is run"


def called(node: ast.AST, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Calls that are wrong for what they are given."""
    if not isinstance(node, ast.Call):
        return
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    shell = given.get("shell")
    if shell is not None and not is_constant(shell, False):
        yield "shell=", "runs a shell"
    name = dotted(node.func, known)
    if name in MUST_SAY:
        keyword, value = MUST_SAY[name]
        if keyword not in given or not is_constant(given[keyword], value):
            yield name, f"does not say {keyword}={value}"
    if name in MUST_DECIDE and MUST_DECIDE[name] not in given:
        yield name, f"does not say {MUST_DECIDE[name]}="
    if name in DYNAMIC and not isinstance(node.args[0], ast.Constant):
        yield name, "loads a module whose name is not in the source"


def is_constant(node: ast.expr, value: object) -> bool:
    """Whether an expression is this very constant."""
    return isinstance(node, ast.Constant) and node.value is value
