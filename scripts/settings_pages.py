"""The reference pages of the command line and of configuration files.

``make generate`` writes them; a test compares them with the code.
"""

from collections.abc import Iterable, Iterator

from chop.config.command_line import (
    INFORMATION,
    opposite_of,
    sentence,
    value_of,
)
from chop.config.option import Setting
from chop.config.run import REMOVED
from chop.config.schema import Schema, default_of, key_rows, table_in, values_of
from chop.config.verb import Verb, all_options, flags_of, main_flag, settings, verbs

MADE = "This page is generated from the code: `make generate` writes it."
CLI = f"""\
# Command line

{MADE}

`ch ACTION [MODEL] [DATASET] [options]`; options may be anywhere. Options override the file that
`--config` names, which overrides the defaults. `NA` means none.
A mistake prints one line on standard error and exits with 2, a bug exits with 1, Ctrl-C with 130.

Output is coloured, with a progress bar, on a terminal only; in a pipe it is plain text, and
`NO_COLOR` makes it plain on a terminal too. `--quiet` prints only errors and
the result:
"""
COMPLETION = """\
## Completion

`ch completion SHELL` prints a script that completes commands, options, and the names of models,
data sets and all other choices. Once, for the shell that you use:

<!-- not run: it changes your shell's files; tests/verbs/test_completion.py runs ch completion -->
```console
$ echo 'source <(ch completion bash)' >> ~/.bashrc
$ echo 'source <(ch completion zsh)' >> ~/.zshrc      # after compinit
$ ch completion fish > ~/.config/fish/completions/ch.fish
```
"""
TOML = f"""\
# Configuration file

{MADE}

A TOML file given with `--config`. Every key is checked: one that is unknown, of the wrong type or
out of bounds is one line that names the file and the key. `"NA"` means none. An option on the
command line wins over the file. `imports` only says what the file needs: nothing of it runs unless
`--import` names it, too.

## In an editor

`ch schema` prints a JSON Schema of the file. Editors with a TOML extension that reads schemas
(Even Better TOML for VS Code, Taplo for others) complete keys and mark mistakes as you type:

```console
$ ch schema > chop.schema.json
```

and, as the first line of the configuration:

```toml
#:schema ./chop.schema.json
```

`ch schema --import my_passes.py` adds the passes, formats and runners of a custom file. The
same schema is at `src/chop/config/chop.schema.json`; `.taplo.toml` applies it to `configs/` in a
checkout, and `taplo check` uses it without an editor.
"""
RULES = """\
## `config` of a quantisation rule

In `[passes.quantize.<rule>.config]`, where a rule is an operation, a node or a pattern as `by`
says, or `default`; `name` is the number format, or `"NA"` to leave the operation in floating
point, and `bypass = true` computes in floating point. In `[search.search_space.seed.<rule>.config]`
each key has a list of values to choose from, or one value.

All other keys are `<operand>_<field>`, such as `weight_width`. The operands are {operands}.
The fields depend on the format, and [formats](../formats.md) says what they mean.
"""
KEYS = ("key", "values", "default", "meaning")


def cli_page() -> str:
    """Every command and every option."""
    quiet = [(f"`{name}`", each.quiet) for name, each in verbs().items()]
    parts = [CLI, _table(("command", "with `--quiet`"), quiet)]
    parts += ["## Commands\n", *map(_command, verbs().values())]
    groups: dict[str, list[Setting]] = {}
    for setting in all_options().values():
        if flags_of(setting):
            groups.setdefault(setting.option.group, []).append(setting)
    for group, listed in groups.items():
        rows = [_option_row(setting) for setting in listed]
        parts += [f"## Options: {group}\n", _table(("option", "default", "meaning"), rows)]
    alone = [(f"`{flags}`", text) for flags, text in INFORMATION.items()]
    parts += ["## Options: information\n", _table(("option", "meaning"), alone)]
    gone = [(f"`--{name.replace('_', '-')}`", text) for name, text in REMOVED.items()]
    parts += [
        "## Options of the original without effect\n",
        _table(("option", "why"), gone),
    ]
    return "\n".join([*parts, COMPLETION])


def _command(verb: Verb) -> str:
    known = all_options()
    words = [
        f"- `{word.metavar}`: {_word(word.help, word.values)}\n" for word in verb.words.values()
    ]
    own = ", ".join(f"`{main_flag(known[each])}`" for each in verb.options)
    heading = f"### `ch {verb.name} {verb.usage}".rstrip() + "`"
    return f"{heading}\n\n{sentence(verb.help)}\n\n{''.join(words)}- Options: {own}\n"


def _word(text: str, values: Iterable[str]) -> str:
    listed = ", ".join(f"`{value}`" for value in values)
    return f"{text}: {listed}" if listed else text


def _option_row(setting: Setting) -> tuple[str, str, str]:
    flags = flags_of(setting)
    if setting.is_flag:
        shown = ", ".join(f"`{flag}`" for flag in (*flags, opposite_of(flags)))
    else:
        shown = ", ".join(f"`{flag} {value_of(setting)}`" for flag in flags)
    again = "; may be given several times" if setting.option.repeatable else ""
    default = setting.default_text
    words = setting.option.default_words
    return shown, words or (f"`{default}`" if default else ""), setting.option.help + again


def toml_page(schema: Schema) -> str:
    """Every key of a file, read off its schema."""
    tables = schema["properties"]
    rows = [
        _setting_row(each, tables[name]) for name, each in settings().items() if each.option.group
    ]
    parts = [TOML, "## Settings\n", _table((*KEYS[:3], "option", "meaning"), rows)]
    parts += [f"## `[passes]`\n\n{sentence(tables['passes']['description'])}\n"]
    for name, table in tables["passes"]["properties"].items():
        parts += _section(f"passes.{name}", table)
    parts += [f"## `[train]`\n\n{sentence(tables['train']['description'])}\n"]
    for name, table in tables["train"]["properties"].items():
        parts += _section(f"train.{name}", table_in(table))
    parts += [f"## `[search]`\n\n{sentence(tables['search']['description'])}\n"]
    for name, table in tables["search"]["properties"].items():
        parts += _section(f"search.{name}", table)
    parts += [f"## `[cf_args]`\n\n{sentence(tables['cf_args']['description'])}\n"]
    parts += list(_shared_tables(schema))
    return "\n".join(parts)


def _setting_row(setting: Setting, schema: Schema) -> tuple[str, ...]:
    default = setting.option.default_words or _code(default_of(schema))
    return (
        f"`{setting.name}`",
        values_of(schema),
        default,
        _code(main_flag(setting)),
        setting.option.help,
    )


def _section(path: str, table: Schema, when: str = "") -> Iterator[str]:
    """A table of a file, and the tables within it."""
    rows = [
        (f"`{key}`", values, default if default == "required" else _code(default), meaning)
        for key, values, default, meaning in key_rows(table)
    ]
    if rows or "description" in table:
        said = [f"{sentence(table['description'])}\n"] if table.get("description") else []
        yield "\n".join([f"### `[{path}]`{when}\n", *said, *[_table(KEYS, rows)] * bool(rows)])
    for key, inner in table.get("properties", {}).items():
        yield from _section(f"{path}.{key}", table_in(inner))
    for case in table.get("allOf", ()):
        name = case["if"]["properties"]["name"]["const"]
        for key, inner in case["then"].get("properties", {}).items():
            yield from _section(f"{path}.{key}", inner, f' with `name = "{name}"`')


def _shared_tables(schema: Schema) -> Iterator[str]:
    """Tables that stand in many places: metrics, and configurations of operations."""
    definitions = schema["definitions"]
    strategy = schema["properties"]["search"]["properties"]["strategy"]["properties"]
    measured = ", ".join(f"`{name}`" for name in strategy["metrics"]["properties"])
    yield f"## Metrics\n\nWhat the runners measure: {measured}.\n"
    yield from _section("search.strategy.metrics.<name>", definitions["metric"])
    rule = definitions["quantize_config"]
    cases = {case["if"]["properties"]["name"]["const"]: case["then"] for case in rule["allOf"]}
    found = [
        (name, *pattern.strip("^()$").split(")_"), values_of(shape))
        for name, case in cases.items()
        for pattern, shape in case["patternProperties"].items()
    ]
    operands = dict.fromkeys(each for _, roles, *_ in found for each in roles.split("|"))
    yield RULES.format(operands=", ".join(f"`{each}`" for each in operands))
    rows = [(f"`{name}`", f"`{field}`", values) for name, _, field, values in found]
    plain = [
        (f"`{name}`", "none", "") for name, case in cases.items() if not case["patternProperties"]
    ]
    yield _table(("format", "field", "values"), sorted([*rows, *plain]))


def _table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(headers)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
