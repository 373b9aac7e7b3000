"""What can go wrong in a configuration file: with its keys, its values, its tables, its bytes."""

import copy
import datetime
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from harden.config_sources import Source

Tables = dict[str, Any]
Place = tuple[Any, Any]
"""A table or list, and the key or index of something in it."""

LONG_INTEGER = "9" * 5000
HUGE = (0, -1, 2**31, 2**63, 10**12, 10**30, -(10**30), 1e308, 5e-324, -0.0)
NOT_NUMBERS = (math.nan, math.inf, -math.inf)
UNICODE = (
    "", " ", "🦎", "ñandú", "\u202eesrever", "\u0000", "a\nb\rc", "\x1b[31mred", "e\u0301" * 40,
    "ﬀ", "１", "\ufeff", "x" * 5000, "/" * 300, "%s%n{}", "../../up", "~nobody", "/dev/zero",
    "/dev/null", "/etc/passwd", "$HOME", "NA", "none", "nan", "true", "-1", "1e3",
)  # fmt: skip
OTHER_TYPES: tuple[Any, ...] = (
    True, False, 1, 2, 3, 7, 0.5, 2.5, "1", [], [1], [[1]], [1, "a"], ["NA"], {}, {"a": 1}, [{}],
    {"": {}}, {"name": "integer"}, datetime.date(2024, 2, 29), datetime.time(1, 2, 3),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC), "integer", "linear", "resnet18", "toy",
    "toy_tiny", "mnist", "jsc", "brute", "gp", "qmc", "minifloat_ieee", "block_fp", "train",
)  # fmt: skip
EXTRA_KEYS = (
    "num_devices", "num_nodes", "num_threads", "num_workers", "batch_size", "max_epochs",
    "max_steps", "learning_rate", "weight_decay", "seed", "project", "project_dir", "load_name",
    "dataset_path", "label_column", "imports", "report_to", "log_level", "strategy", "resume",
    "early_stopping", "accumulate_grad_batches", "log_every_n_steps", "trainer_precision",
    "scheduler", "training_optimizer", "accelerator", "cf_args", "passes", "search", "profile",
    "is_pretrained", "load_type", "task", "to_debug", "no_warnings", "disable_dataset_cache",
    "quant_config", "target", "colour", "__class__", "",
)  # fmt: skip
EXTRA_PASSES = (
    "prune", "quantize", "linear_bn_fusion", "report_graph", "count_operations", "hook_inspection",
    "save_mase_graph", "load_mase_graph", "add_common_metadata", "profile_statistics", "nothing",
    "calculate_avg_bits", "verify_metadata", "save_node_meta_param", "prune_detach_hook",
)  # fmt: skip


def containers(value: Any) -> Iterator[Place]:
    """Every place inside nested tables and lists."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from containers(value[key])


def pick(tables: Tables, rng: random.Random, kind: type | None = None) -> Place:
    """A random place, in a table or a list as asked; the last resort is a new key at the top."""
    places = [place for place in containers(tables) if kind is None or isinstance(place[0], kind)]
    return rng.choice(places) if places else (tables, "key")


def tables_in(tables: Tables) -> list[Tables]:
    """The tables, the outermost first."""
    inner = [owner[key] for owner, key in containers(tables) if isinstance(owner[key], dict)]
    return [tables, *inner]


def misspelt(word: str, rng: random.Random) -> str:
    """A word with one slip of the fingers."""
    place = rng.randrange(len(word) + 1)
    slips = (
        word[:place] + word[place + 1 :],
        word[:place] + rng.choice("aeixz_-. é") + word[place:],
        word[:place] + word[place : place + 2][::-1] + word[place + 2 :],
        word.upper(),
        word + word[-1:],
        word.replace("_", "-"),
    )
    return rng.choice(slips)


def drop_key(tables: Tables, rng: random.Random) -> None:
    """Leave something out."""
    owner, key = pick(tables, rng)
    if isinstance(owner, list) or key in owner:
        del owner[key]


def misspell_key(tables: Tables, rng: random.Random) -> None:
    """Write a key wrongly."""
    owner, key = pick(tables, rng, dict)
    owner[misspelt(str(key), rng)] = owner.pop(key, 1)


def misspell_value(tables: Tables, rng: random.Random) -> None:
    """Write a word wrongly."""
    owner, key = pick(tables, rng)
    value = owner[key] if isinstance(owner, list) else owner.get(key)
    owner[key] = misspelt(value, rng) if isinstance(value, str) else misspelt(str(value), rng)


def add_key(tables: Tables, rng: random.Random) -> None:
    """Write a key that is not meant to be there, or one that is, with any value."""
    key = rng.choice(EXTRA_KEYS)
    owner = tables if rng.random() < 0.8 else rng.choice(tables_in(tables))
    owner[key] = copy.deepcopy(rng.choice((*OTHER_TYPES, *HUGE, *NOT_NUMBERS, *UNICODE)))


def add_pass(tables: Tables, rng: random.Random) -> None:
    """Ask for a pass with arguments that it may not have."""
    passes = tables.setdefault("passes", {})
    if isinstance(passes, dict):
        arguments = rng.choice(({}, {}, {"by": "name"}, {"save_dir": "x"}, {"weight": 1}, 7))
        passes[rng.choice(EXTRA_PASSES)] = copy.deepcopy(arguments)


def replaced_by(values: tuple[Any, ...]) -> Callable[[Tables, random.Random], None]:
    """A mutation that puts one of these in the place of something."""

    def replace(tables: Tables, rng: random.Random) -> None:
        owner, key = pick(tables, rng)
        owner[key] = copy.deepcopy(rng.choice(values))  # later mutations may change it

    replace.__doc__ = "Put another value in the place of one."
    return replace


def rename_to_unicode(tables: Tables, rng: random.Random) -> None:
    """Give a key a name from anywhere."""
    owner, key = pick(tables, rng, dict)
    owner[rng.choice(UNICODE)] = owner.pop(key, 1)


def swap_values(tables: Tables, rng: random.Random) -> None:
    """Exchange two values that are not tables."""
    leaves = [(o, k) for o, k in containers(tables) if not isinstance(o[k], dict | list)]
    if len(leaves) > 1:
        (a, i), (b, j) = rng.sample(leaves, 2)
        a[i], b[j] = b[j], a[i]


def move_table(tables: Tables, rng: random.Random) -> None:
    """Put something into a table where it does not belong."""
    owner, key = pick(tables, rng, dict)
    moved = owner.pop(key, 1)
    rng.choice(tables_in(tables))[str(key)] = moved


def wrap_value(tables: Tables, rng: random.Random) -> None:
    """Put brackets around something, once or many times."""
    owner, key = pick(tables, rng)
    value = owner[key] if isinstance(owner, list) else owner.get(key)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 40))):
        value = rng.choice(([value], {str(key): value}))
    owner[key] = value


def unwrap_table(tables: Tables, rng: random.Random) -> None:
    """Write what a table holds beside it."""
    inner = [
        (o, k) for o, k in containers(tables) if isinstance(o, dict) and isinstance(o[k], dict)
    ]
    if inner:
        owner, key = rng.choice(inner)
        owner.update(owner.pop(key))


def repeat_table(tables: Tables, rng: random.Random) -> None:
    """Put a copy of the whole into itself, or make an array of tables of a table."""
    owner, key = pick(tables, rng, dict)
    owner[key] = copy.deepcopy(rng.choice(([owner.get(key)] * 2, tables)))


KEYS = (drop_key, drop_key, misspell_key, misspell_value, add_key, add_key, add_pass)
VALUES = (
    replaced_by(OTHER_TYPES), replaced_by(HUGE), replaced_by(NOT_NUMBERS), replaced_by(UNICODE),
    rename_to_unicode, swap_values,
)  # fmt: skip
NESTING = (move_table, wrap_value, unwrap_table, repeat_table)


def mutated(source: Source, mutations: tuple[Any, ...], rng: random.Random) -> bytes:
    """A source with one to three mutations of its tables."""
    tables = source.tables
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(mutations)(tables, rng)
    return toml(tables).encode()


def toml(tables: Tables) -> str:
    """Tables as TOML, the inner ones in one line each: quicker to write than headers."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in tables.items())


def _key(key: object) -> str:
    return _text(str(key))


def _text(text: str) -> str:
    escaped = "".join(
        char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08x}" for char in text
    )
    return f'"{escaped}"'


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else repr(value)
