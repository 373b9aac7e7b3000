"""The information of the pass `count_operations` as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

COLUMNS = {
    "macs": "MACs",
    "flops": "FLOPs",
    "backward_flops": "Backward FLOPs",
    "bitops": "BitOPs",
    "ebops": "EBOPs",
    "parameters": "Parameters",
    "parameter_bits": "Parameter bits",
    "input_buffer_size": "Input buffer",
    "output_buffer_size": "Output buffer",
}
UNKNOWN = "?"
NAMED = 5
"""How many nodes a sentence names."""


def report_counts(info: Mapping[str, Any]) -> str:
    """The information of the pass `count_operations` as text: nodes, total, and what is missing."""
    columns = [name for name in COLUMNS if name in info["total"]]
    rows = [
        [name, count["op"], *cells(count, columns)]
        for name, count in info["nodes"].items()
        if any(count[column] != 0 for column in columns)
    ]
    rows.append(["Total", "", *cells(info["total"], columns)])
    headers = ["Node name", "Mase op", *(COLUMNS[name] for name in columns)]
    table = tabulate(
        rows,
        headers=headers,
        tablefmt="orgtbl",
        disable_numparse=True,
        colalign=("left", "left", *("right" for _ in columns)),
    )
    told = [rounded_line(info["total"]), *unreached_lines(info["total"], info["not_rounded"])]
    return "\n".join([table, *told, *remarks(info)])


def cells(count: Mapping[str, Any], columns: list[str]) -> list[str]:
    """Numbers with their thousands apart."""
    return [UNKNOWN if count[name] is None else f"{count[name]:,}" for name in columns]


def remarks(info: Mapping[str, Any]) -> list[str]:
    """Sentences on what the numbers are per, and on what they leave out."""
    batch = "" if info["batch_size"] is None else f" of {info['batch_size']}"
    if info["per"] == "sample":
        lines = [f"Per sample, counted on a batch{batch}."]
    else:
        lines = [f"For the whole batch{batch}, not per sample: {info['note']}."]
    missing = ", ".join(f"{each['node']} ({each['op']})" for each in info["uncounted"])
    lines += [f"Not counted: {missing}."] if missing else []
    if "ebops" in info:
        lines.append(f"EBOPs with the values of {info['ebops']['rows']:,} rows.")
        lines += [
            f"EBOPs not counted: {each['node']}, {each['reason']}."
            for each in info["ebops"]["uncounted"]
        ]
    return lines


def rounded_line(total: Mapping[str, Any]) -> str:
    """One sentence: the share of all MACs whose operands are really rounded."""
    macs, both, one = (total[n] for n in ("macs", "rounded_macs", "half_rounded_macs"))
    if not macs:
        return "There are no MACs."
    shares = f"both operands rounded: {both / macs:.1%} ({both:,} of {macs:,})"
    return f"MACs with {shares}; with one of the two: {one / macs:.1%}."


def unreached_lines(
    total: Mapping[str, Any], not_rounded: Sequence[Mapping[str, Any]]
) -> list[str]:
    """One sentence on the MACs of a quantised graph that no rule can round, and what has them."""
    missing = [each for each in not_rounded if each["out_of_reach"]]
    if not missing or not total["rounded_macs"] + total["half_rounded_macs"]:
        return []
    missing.sort(key=lambda each: -each["out_of_reach"])
    share = sum(each["out_of_reach"] for each in missing)
    names = ", ".join(
        f"{each['node']} ({', '.join(each['functions']) or each['op']})" for each in missing[:NAMED]
    )
    others = f" and {len(missing) - NAMED} more nodes" if len(missing) > NAMED else ""
    return [
        f"{share:.1%} of the MACs stay in floating point, which no rule rounds: {names}{others}."
    ]
