"""The rules of `quantize` in few words: a format for all products, and others for some layers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chop.errors import ConfigError, UnknownNameError
from chop.nn.quant_config import required_fields
from chop.numerics import FORMATS
from chop.numerics.base import AUTO
from chop.ops.table import OPS
from chop.passes.graph.transforms.quantize.plan import quantizable_operations

WIDTH = 8
FLOAT = "float"
ROLES = ("data_in", "weight", "scores")
"""The operands that a width is for; what is not said of others follows from these."""
MOST_EXPONENT = 5


@dataclass(frozen=True)
class FormatSpec:
    """A number format in few words; no name is floating point."""

    name: str | None = "integer"
    width: int | None = None
    weight_width: int | None = None

    def __post_init__(self) -> None:
        for bits in (self.width, self.weight_width):
            if isinstance(bits, int) and bits < 1:
                raise ConfigError(f"a width of {bits} bits: numbers have at least 1 bit")

    def config(self, calibrated: bool) -> dict[str, Any]:
        """The ``config`` of a rule of ``[passes.quantize]``.

        | field | |
        |---|---|
        | `width` | as asked; 8 where the format has none of its own and nothing is asked |
        | `exponent_width` | half of the width, at most 5: 4 of 8, 3 of 6, 2 of 4 |
        | the scale (`frac_width`, `exponent_bias`) | from rows, if there are any |
        """
        if self.name is None:
            return {"name": None}
        form = FORMATS[self.name]
        needed = required_fields(form)
        if others := set(needed) - {"width", "exponent_width", form.scale_field}:
            raise ConfigError(
                f"format {self.name!r} needs more than a width: say its "
                f"{' and '.join(sorted(map(str, others)))} in [passes.quantize], for ch transform"
            )
        config: dict[str, Any] = {"name": self.name}
        if "width" not in form.model_fields and (self.width or self.weight_width):
            raise ConfigError(f"format {self.name!r} has a width of its own: leave the width out")
        if "width" not in needed and not (self.width or self.weight_width):
            return config
        for role in ROLES:
            config |= self._operand(role, calibrated)
        return config

    def _operand(self, role: str, calibrated: bool) -> dict[str, Any]:
        """The settings of one operand."""
        form = FORMATS[str(self.name)]
        bits = self.width or (WIDTH if "width" in required_fields(form) else None)
        if role == "weight":
            bits = self.weight_width or bits
        if bits is None:
            return {}
        said: dict[str, Any] = {f"{role}_width": bits}
        if "exponent_width" in required_fields(form):
            said[f"{role}_exponent_width"] = max(1, min(MOST_EXPONENT, bits // 2))
        if form.scale_field is not None and calibrated:
            said[f"{role}_{form.scale_field}"] = AUTO
        elif form.scale_field == "frac_width" and role == "scores":
            said[f"{role}_frac_width"] = max(bits - 1, 0)  # they lie between 0 and 1
        return said


def parse_format_spec(text: str, usual: FormatSpec) -> FormatSpec:
    """``6``, ``float``, ``minifloat_ieee`` or ``minifloat_ieee:6``.

    Args:
        usual: what is meant where nothing else is said.
    """
    name, _, bits = text.rpartition(":")
    if not name and re.fullmatch(r"\d+", bits):
        return replace(usual, width=int(bits), weight_width=None)
    if text == FLOAT:
        return FormatSpec(None)
    name, bits = (name, bits) if name else (bits, "")
    if name not in FORMATS:
        raise UnknownNameError("number format", name, [*FORMATS, FLOAT])
    if bits and not re.fullmatch(r"[1-9]\d*", bits):
        raise ConfigError(f"{text!r}: after the format stands a width, such as {name}:8")
    return FormatSpec(name, int(bits) if bits else None)


def parse_rules(texts: Sequence[str], usual: FormatSpec) -> dict[str, FormatSpec]:
    """``fc1=6`` and so on, by what stands before the last ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.rpartition("=")
        if not equals or not key.strip() or not value.strip():
            raise ConfigError(f"--rule {text!r}: write LAYER=WIDTH, such as fc1=6, or fc1=float")
        try:
            found[key.strip()] = parse_format_spec(value.strip(), usual)
        except ConfigError as error:
            raise ConfigError(f"--rule {text}: {error}") from None
    return found


def one_line_rules(
    usual: FormatSpec,
    others: Mapping[str, FormatSpec] | None = None,
    *,
    calibrated: bool,
    products_only: bool = True,
) -> dict[str, Any]:
    """The table ``[passes.quantize]`` that a format in few words, and others, stand for.

    Args:
        others: formats by operation, or by the name of a layer or a pattern for names.
        calibrated: whether rows will be there to choose scales from.
        products_only: leave everything but products in floating point, unless a rule names it;
            else the rules are those of the pass quantize_whole.
    """
    if usual.name is not None and usual.name not in FORMATS:
        raise UnknownNameError("number format", usual.name, FORMATS)
    others = others or {}
    known = quantizable_operations()
    operations = [key for key in others if key in known]
    if operations and len(operations) < len(others):
        name = next(key for key in others if key not in known)
        raise ConfigError(
            f"rules for an operation ({operations[0]}) and for a layer ({name}) cannot stand "
            "together: name layers only, or operations only"
        )
    products = {"only": product_operations()} if products_only else {}
    is_plain = all(key.isidentifier() for key in others)
    by_name = "name" if is_plain else "regex_name"
    return {
        "by": by_name if others and not operations else "type",
        "default": {"config": usual.config(calibrated), **products},
        **{key: {"config": wanted.config(calibrated)} for key, wanted in others.items()},
    }


def product_operations() -> list[str]:
    """Return the operations that are products of their operands, as layers with weights are."""
    return sorted(op.name for op in OPS.values() if op.quantizable and op.multiplies)
