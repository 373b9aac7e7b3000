"""The page `docs/passes.md`: every pass that is registered, with its arguments."""

import inspect
import re

from chop.passes.base import PASSES, Kind, Pass, PassArgs
from chop.verbs.schema.tables import texts_of

INTRODUCTION = """\
# Passes

This page is generated from the registry: `make generate` writes it.

Call a pass as `graph, info = the_pass(graph, pass_args)`, where `pass_args` is a dictionary, an
instance of its argument class, or left out. In a file, `[passes.<name>]` runs it. The dictionary is
checked and never changed; `"NA"` means None. Import passes from `chop.passes.graph` or
`chop.passes`. An unknown key is an error, except for keys that the original passes without effect,
such as `dummy_in` for a pass that runs nothing: these give one warning. Reports go to standard
output, and `info` has the same facts as values.

To [add a pass](howto/own-pass.md), decorate a function:

```python
from pydantic import Field
from chop.passes import PassArgs, analysis_pass

class CountArgs(PassArgs):
    at_least: int = Field(default=1, ge=1)

@analysis_pass("count_layers", requires=("common",))
def count_layers_analysis_pass(graph, args: CountArgs):
    \"\"\"Count the layers.\"\"\"
    return graph, {"layers": sum(node.op == "call_module" for node in graph.nodes)}
```

Without a `PassArgs` annotation the function gets a copy of the unchecked dictionary.
"""
KINDS: dict[Kind, str] = {
    "analysis": "Analysis passes: they measure or report, and do not change the model",
    "transform": "Transform passes: they change the graph",
    "interface": "Interface passes: they save and load",
}


def passes_page() -> str:
    """The whole page; passes that users registered are not on it."""
    ours = [entry for entry in PASSES.values() if entry.__module__.startswith("chop.")]
    parts = [INTRODUCTION]
    for kind, heading in KINDS.items():
        of_kind = {entry.name: entry for entry in ours if entry.kind == kind}
        if of_kind:
            parts.append(f"## {heading}\n")
            parts += [pass_section(of_kind[name]) for name in sorted(of_kind)]
    return "\n".join(parts)


def pass_section(entry: Pass) -> str:
    """The section of one pass."""
    names = [f"`{name}`" for name, other in PASSES.items() if other is entry]
    lines = [f"### {', '.join(names)}\n", f"`{entry.__name__}`: {inspect.getdoc(entry)}\n"]
    if entry.requires:
        needed = " and ".join(f"`add_{section}_metadata`" for section in entry.requires)
        lines.append(f"Needs {needed}.\n")
    if entry.schema is not None:
        if entry.schema.model_fields:
            lines.append(arguments_table(entry.schema))
        own = entry.schema.ignored.keys() - PassArgs.ignored.keys()
        if own:
            lines.append(
                f"Accepted without effect: {', '.join(f'`{key}`' for key in sorted(own))}.\n"
            )
    return "\n".join(lines)


def arguments_table(schema: type[PassArgs]) -> str:
    """The arguments of a pass with their types, defaults and what its class says of them."""
    said = texts_of(schema)
    rows = ["| argument | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema.model_fields.items():
        kind = re.sub(r"[a-z_]+\.", "", inspect.formatannotation(field.annotation))
        kind = kind.replace("|", "\\|")
        default = "required" if field.is_required() else f"`{field.default!r}`"
        rows.append(f"| `{name}` | `{kind}` | {default} | {said.get(name, '')} |")
    first = (inspect.getdoc(schema) or "").partition("\n")[0]
    return f"{first}\n\n" + "\n".join(rows) + "\n"
