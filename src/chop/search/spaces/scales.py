"""Scales of number formats that a search space leaves open: chosen once, from training rows."""

import contextlib
import itertools
import logging
from typing import Any

import torch

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import QuantConfig, known_keys, parse_quant_config
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.base import AUTO
from chop.ops.op import Op
from chop.ops.table import OPS
from chop.passes.graph.transforms.quantize.observe import Fits, Wanted, fits_of
from chop.passes.graph.transforms.quantize.ranges import Calibration
from chop.search.spaces.space import SearchContext, options

logger = logging.getLogger("chop")


def chosen_scales(
    context: SearchContext, graph: MaseGraph, wanted: Wanted, settings: Calibration
) -> Fits:
    """The scale of each operand in each format that is wanted."""
    if not wanted:
        return {}
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(context.seed)  # a custom loader may draw its rows
        loader = context.data_module.train_dataloader()
        batches = ({"x": features.to(context.device)} for features, _ in loader)
        fits, rows = fits_of(graph, wanted, batches, settings)
    logger.info("%d scales were chosen from %d training rows", len(fits), rows)
    return fits


def formats_to_fit(
    op: Op, seed: dict[str, Any]
) -> tuple[QuantConfig | None, dict[str, set[NumberFormat]]]:
    """The formats whose scale is "auto" that a seed offers each operand, and a configuration.

    Both are empty if it offers none.
    """
    found: dict[str, set[NumberFormat]] = {}
    quant = None
    names = [name for name in options(seed["name"], op.name) if name is not None]
    for name in names if any(AUTO in options(value, key) for key, value in seed.items()) else ():
        offered = formats_offered(op, name, seed)
        quant = QuantConfig(name, {role: formats[0] for role, formats in offered.items()})
        for role, formats in offered.items():
            found.setdefault(role, set()).update(each for each in formats if each.is_open)
    return quant, {role: formats for role, formats in found.items() if formats}


def formats_offered(op: Op, name: str, seed: dict[str, Any]) -> dict[str, list[NumberFormat]]:
    """Every format of this name that a seed offers each operand.

    The keys of one operand go together, whatever is chosen for the others. A combination that is
    no format makes a trial that fails, and needs no scale.
    """
    keys: dict[str, dict[str, tuple[Any, ...]]] = {}
    for key, value in seed.items():
        if role := role_of(key, FORMATS[name]):
            keys.setdefault(role, {})[key] = options(value, key)
    offered: dict[str, list[NumberFormat]] = {}
    for source, values in keys.items():
        for chosen in itertools.product(*values.values()):
            rule = dict(zip(values, chosen, strict=True))
            with contextlib.suppress(ConfigError):
                # Bypassed, it need not say anything of other operands.
                parsed = parse_quant_config(op, {"name": name, "bypass": True, **rule}, op.name)
                for role, fmt in parsed.operands.items():
                    if role == source or role not in keys:  # which takes what is said of another
                        offered.setdefault(role, []).append(fmt)
    return offered


def role_of(key: str, fmt: type[NumberFormat]) -> str | None:
    """The operand that a key is about, if it is a key of the format."""
    role, _ = known_keys(fmt, len(OPS)).get(key, (None, None))
    return role


def check_auto(
    values: tuple[Any, ...], key: str, formats: list[type[NumberFormat]], where: str
) -> None:
    """Refuse "auto" where no listed format can take it, and its misspellings."""
    scales = {
        fmt.scale_field
        for fmt in formats
        if fmt.scale_field and key.endswith(f"_{fmt.scale_field}")
    }
    for value in values:
        if isinstance(value, str) and value.lower() == AUTO and (value != AUTO or not scales):
            known = sorted({fmt.scale_field for fmt in formats if fmt.scale_field})
            hint = f'"auto" is for {" and ".join(known)}' if known else "no format here has a scale"
            raise ConfigError(f"{where}: {value!r} is not understood: {hint}")
