"""The flat dictionary of the labs, as typed number formats by role, and back.

``{"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8, …}``

What is missing, in this order: a bias takes the format of the weight; a further operand of a
function (the second of `matmul`, the query of an attention) takes that of `data_in`; anything else
is an error. Formats that need no settings apply to every operand when none is mentioned, and only
to the operands that are mentioned otherwise; one that says so (`every_operand`) applies to all.
Keys of roles that an operation lacks are tolerated, because one rule may serve many operations;
keys of no role and no field are errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chop.errors import ConfigError, UnknownNameError
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.int_tensor import as_lists
from chop.ops.op import Op
from chop.ops.table import OPS
from chop.validation import parse

OUTPUT = "data_out"


@dataclass(frozen=True)
class QuantConfig:
    """The quantisation of one operation: a number format for each of its operands."""

    name: str
    operands: Mapping[str, NumberFormat]
    bypass: bool = False
    """Compute in floating point as if not quantised."""

    @property
    def format(self) -> type[NumberFormat]:
        """The kind of number format that all operands share."""
        return FORMATS[self.name]

    @property
    def is_open(self) -> bool:
        """A scale is "auto", so that the operation cannot run yet."""
        return any(fmt.is_open for fmt in self.operands.values())

    def as_dict(self) -> dict[str, Any]:
        """The flat dictionary with every field stated; parsing it gives the same configuration."""
        return {key: as_lists(value) for key, value in self.fields().items()}

    def fields(self) -> dict[str, Any]:
        """The same without making nested lists of what formats hold as tensors."""
        # A name alone would stand for every operand, so that none at all is said as a bypass.
        bypass = self.bypass or not self.operands
        head: dict[str, Any] = {"name": self.name} | ({"bypass": True} if bypass else {})
        return head | {
            f"{role}_{field}": value
            for role, fmt in self.operands.items()
            for field, value in fmt.fields().items()
        }

    def require_shape(self, op: Op, role: str, shape: Sequence[int]) -> None:
        """Raise if the format of an operand does not fit its shape."""
        if role in self.operands:
            try:
                self.operands[role].require_shape(shape)
            except ConfigError as error:
                raise ConfigError(f"{op.name}: {role}: {error}") from None

    def require(self, op: Op, role: str) -> None:
        """Raise if an operand that is there has no format although the format needs settings."""
        needed = required_fields(self.format)
        if role not in self.operands and needed and not self.bypass:
            keys = " and ".join(f"'{role}_{field}'" for field in needed)
            raise ConfigError(f"{op.name} in {self.name!r} has a {role}: {keys} must be given")


def parse_quant_config(op: Op, config: Mapping[str, Any], where: str) -> QuantConfig:
    """The configuration of `op` from a flat dictionary, which is not changed.

    Args:
        where: what the dictionary is, for the error message: ``pass 'quantize': linear``.
    """
    bypass = config.get("bypass") or False
    if not isinstance(bypass, bool):
        raise ConfigError(f"{where}: bypass: true or false expected (got {bypass!r})")
    fmt = _format(config, where)
    given = _fields_by_role(fmt, config, where)
    operands = {}
    for role in dict.fromkeys((*op.roles, *op.inner, OUTPUT)):
        sources = _sources(op, role, fmt)
        source = next((given[name] for name in sources if name in given), None)
        unsaid = fmt.every_operand or not (required_fields(fmt) or given)
        if source is None and unsaid and role in op.roles:
            source = {}
        if source is not None:
            fields = _role_defaults(op, role, fmt) | source
            operands[role] = parse(fmt, fields, f"{where}: {role}")
        elif not (
            bypass or role in op.optional or role not in op.roles or not required_fields(fmt)
        ):
            raise ConfigError(f"{where}: {_missing(op, role, fmt)}")
    return QuantConfig(str(config["name"]), operands, bypass)


def required_fields(fmt: type[NumberFormat]) -> list[str]:
    """The fields of a format that have no default."""
    return [name for name, field in fmt.model_fields.items() if field.is_required()]


@lru_cache(maxsize=64)
def known_keys(fmt: type[NumberFormat], rows: int) -> dict[str, tuple[str, str]]:
    """Role and field of every key that means something to any operation.

    Args:
        rows: the length of the table of operations, which grows when users add to it.
    """
    roles = {role for op in OPS.values() for role in (*op.roles, *op.inner)} | {OUTPUT}
    return {
        f"{role}_{field}": (role, field) for role in sorted(roles) for field in fmt.model_fields
    }


def _format(config: Mapping[str, Any], where: str) -> type[NumberFormat]:
    name = config.get("name")
    if name is None:
        raise ConfigError(f"{where}: 'name' of the number format is missing")
    if name not in FORMATS:
        raise UnknownNameError("number format", name, FORMATS, where)
    return FORMATS[name]


def _fields_by_role(
    fmt: type[NumberFormat], config: Mapping[str, Any], where: str
) -> dict[str, dict[str, Any]]:
    """The settings of each role that is mentioned, an unknown key being an error."""
    fields = known_keys(fmt, len(OPS))
    given: dict[str, dict[str, Any]] = {}
    for key in config.keys() - {"name", "bypass"}:
        if key not in fields:
            raise UnknownNameError("key", key, [*fields, "name", "bypass"], where)
        role, field = fields[key]
        given.setdefault(role, {})[field] = config[key]
    return given


def _sources(op: Op, role: str, fmt: type[NumberFormat]) -> Iterator[str]:
    """The roles whose settings serve `role`, in order of preference."""
    yield role
    if role == "bias" and not fmt.every_operand:
        yield "weight"
    if role in op.inputs:
        yield "data_in"


def _role_defaults(op: Op, role: str, fmt: type[NumberFormat]) -> dict[str, Any]:
    """The settings that follow from the role of an operand, where the format has such fields."""
    facts = {
        "signed": role not in op.unsigned,
        # The first dimension of data is the batch: samples must not share a block.
        "skip_first_dim": role in (*op.inputs, *op.inner, OUTPUT),
    }
    stated = {name: value for name, value in facts.items() if name in fmt.model_fields}
    return stated | fmt.defaults_for(role, flows=role not in op.params)


def _missing(op: Op, role: str, fmt: type[NumberFormat]) -> str:
    keys = " and ".join(repr(f"{role}_{field}") for field in required_fields(fmt))
    return f"{op.name} needs {keys}"
