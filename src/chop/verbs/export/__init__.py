"""Export: a saved graph in a form that needs neither PyTorch nor Machop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from chop.catalogue import read_catalogue
from chop.config.option import Option
from chop.config.run import Debug, Imports, LoadName, LoadType, Output, Quiet
from chop.config.verb import Verb, add_verb
from chop.errors import ConfigError
from chop.masking import printable

if TYPE_CHECKING:
    from chop.export.exporting import Exported
    from chop.verbs.export.saved import ExportedFront

GROUP = "export"
OF_EVERY_FORM = (
    *("load_name", "load_type", "imports", "to", "output", "rows", "verify", "cut_tail"),
    *("agreement", "all", "quiet", "to_debug"),
)
"""Fields that mean something for every form; all others are settings of some of them."""


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """Export a quantised graph to C, ONNX or circuits, and check it: ch export --load PATH."""

    load_name: LoadName = None
    load_type: LoadType = "mz"
    imports: Imports = field(default_factory=list)
    to: Annotated[
        str | None,
        Option(
            "format, as listed by: ch info targets",
            GROUP,
            values=tuple(read_catalogue()["targets"]),
        ),
    ] = None
    output: Output = None
    rows: Annotated[
        int | None,
        Option(
            "rows of codes to check the files with; 0 checks nothing",
            GROUP,
            default_words="2000, or 50 of a folded circuit",
            at_least=0,
        ),
    ] = None
    verify: Annotated[
        str | None,
        Option(
            "fail if the files cannot be checked, for example without a simulator; qemu: run C on "
            "simulated devices, too",
            GROUP,
            values=("file", "qemu"),
            bare="file",
        ),
    ] = None
    cut_tail: Annotated[
        bool, Option("drop floating-point operations at the end, such as a softmax", GROUP)
    ] = False
    agreement: Annotated[
        bool,
        Option(
            "compare node by node: noise against float, and the codes of simulation, C and ONNX",
            GROUP,
        ),
    ] = False
    all: Annotated[
        bool,
        Option("export all networks of the front of a search, each beside the others", GROUP),
    ] = False
    stages: Annotated[
        int | None,
        Option(
            "pipeline registers of a circuit from inputs to outputs, at most 1,000; by default one "
            "for each layer",
            GROUP,
            at_least=0,
            below=1001,
        ),
    ] = None
    clock_ns: Annotated[
        float | None,
        Option(
            "clock period in nanoseconds to place registers for, in place of --stages",
            GROUP,
            above=0,
        ),
    ] = None
    stream: Annotated[bool, Option("add an AXI-stream wrapper to a circuit", GROUP)] = False
    synthesise: Annotated[
        bool, Option("map a circuit to devices with Yosys and nextpnr", GROUP)
    ] = False
    cocotb: Annotated[
        bool, Option("add a bench in Python to a circuit with streams, for cocotb", GROUP)
    ] = False
    most_luts: Annotated[
        int | None,
        Option("refuse circuits above this estimate", GROUP, default_words="200000", at_least=1),
    ] = None
    folded: Annotated[
        bool,
        Option(
            "make a circuit that shares multipliers, with a stream of pixels in and scores out; "
            "as fast as --most-luts allows, or as --cycles say",
            GROUP,
        ),
    ] = False
    cycles: Annotated[
        int | None,
        Option("clock cycles that a folded circuit may take for an image", GROUP, at_least=1),
    ] = None
    argmax: Annotated[
        bool, Option("give the class from a circuit, in place of its scores", GROUP)
    ] = False
    raw: Annotated[
        str | None,
        Option(
            "format of features as they are measured, which a circuit scales itself: u8, s10.4",
            GROUP,
        ),
    ] = None
    device: Annotated[
        str | None,
        Option(
            "refuse circuits that are estimated not to fit this device",
            GROUP,
            values=("ecp5-25k", "ecp5-45k", "ecp5-85k", "xc7z020", "xc7a100t", "xczu3eg"),
        ),
    ] = None
    name: Annotated[
        str | None,
        Option("name of the files and functions of C", GROUP, default_words="model"),
    ] = None
    optimise: Annotated[
        str | None,
        Option(
            "what the forms of weights in C are chosen for",
            GROUP,
            default_words="speed",
            values=("speed", "size"),
        ),
    ] = None
    package: Annotated[
        str | None,
        Option(
            "build system that C is for",
            GROUP,
            default_words="plain",
            values=("plain", "cmake", "arduino", "zephyr", "platformio"),
        ),
    ] = None
    qemu: Annotated[
        bool,
        Option(
            "run 100 rows of C on simulated devices, and measure instructions there; as --verify "
            "qemu",
            GROUP,
        ),
    ] = False
    quiet: Quiet = False
    to_debug: Debug = False


def export_saved(request: ExportRequest) -> "Exported | ExportedFront":
    """Write a saved graph, or all of a front, in another form, and check the files."""
    for value, flag in ((request.load_name, "--load PATH"), (request.to, "--to FORM")):
        if value is None:
            raise ConfigError(f"export: {flag} is missing: write ch export --load PATH --to FORM")
    from chop.logger import only_results

    with only_results(request.quiet):
        from chop.verbs.export.saved import export_front, export_graph_file

        flags = {name: flag for name, flag in vars(request).items() if name not in OF_EVERY_FORM}
        given = {name: flag for name, flag in flags.items() if flag not in (None, False)}
        given |= {"qemu": True} if request.verify == "qemu" else {}
        given |= {"report": True} if request.to == "c" else {}
        given |= {"rows": request.rows, "verify": request.verify is not None}
        given |= {"load_type": request.load_type, "imports": request.imports}
        given |= {"cut_tail": request.cut_tail, "agreement": request.agreement}
        load, to = str(request.load_name), str(request.to)
        if not request.all:
            return export_graph_file(load, to, request.output, **given)
        if request.output is not None:
            raise ConfigError("export: --all names its folders itself: leave out --output")
        return export_front(load, to, **given)


def show_export(done: "Exported | ExportedFront", request: ExportRequest) -> str:
    """Return where the files are and what was checked, for a terminal."""
    from chop.verbs.export.saved import ExportedFront

    if isinstance(done, ExportedFront):
        return f"{done.folders}\n" if request.quiet else f"{done.table}\n"
    folder, said = printable(str(done.folder)), "\n".join(map(printable, done.said))
    if request.quiet:
        return f"{folder}\n"
    if request.agreement:
        from chop.results.agreement import AgreementByNode

        said += f"\n{AgreementByNode.load(done.folder)}"
    if "c" in done.manifest:
        from chop.results.devices import CodeReport

        ran = str(done.manifest["checked_with"]).partition("; ")[2]
        said += f"\nDevices: {ran}" if ran else ""
        said += f"\n{CodeReport.of(done.manifest)}"
    if "circuit" in done.manifest:
        from chop.results.exports import circuits_table

        said += f"\n{circuits_table([(done.folder.name, done.manifest)]).text()}"
    return f"Exported: {folder}, {said}\n"


add_verb(
    Verb(
        "export",
        ExportRequest,
        place=10,
        quiet="the folder of the files, or those of a front",
        function=export_saved,
        show=show_export,
    )
)
