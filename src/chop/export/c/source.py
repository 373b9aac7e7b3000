"""The files of a program in C: the header, the source, and a program that runs rows of text."""

from dataclasses import dataclass

from chop import __version__
from chop.export.c.code import CText, comment_line, loops, short_type, value_type
from chop.export.c.costs import WeightMatrix, choose_forms
from chop.export.c.entries import FloatEntries
from chop.export.c.kernels import DSP, PRELUDE, ROUNDING, WINDOW
from chop.export.c.plan import (
    ALIGNMENT,
    Buffer,
    Layer,
    Stored,
    as_matrix,
    bytes_of,
    fused_layers,
    place_buffers,
)
from chop.export.c.simplify import simplified
from chop.export.c.steps import write_layer
from chop.export.c.writer import LayerWriter, reordering
from chop.lowering.program import Convolution, IntegerProgram, Product, Value
from chop.lowering.ranges import reach


@dataclass(frozen=True)
class CProgram:
    """A program as C: text of the layers, and the memory that they need."""

    program: IntegerProgram
    layers: list[Layer]
    writer: LayerWriter
    scratch_bytes: int

    @property
    def buffers(self) -> list[Buffer]:
        """Buffers of the arena, with their places and the layers that need them."""
        return self.writer.buffers

    @property
    def output_offsets(self) -> list[int]:
        """Places of the codes of outputs, which only the functions for numbers need."""
        last = len(self.program.outputs)
        return [each.offset for each in self.buffers[len(self.buffers) - last :]]

    @property
    def inputs(self) -> list[Value]:
        """The values that the caller gives."""
        return [each.value for each in self.program.inputs]

    @property
    def outputs(self) -> list[Value]:
        """The values that the caller gets."""
        values = self.program.values
        return [values[name] for name in self.program.outputs]


def c_program(given: IntegerProgram, optimise: str = "speed") -> CProgram:
    """Plan and write the layers of a program, for few instructions or for little flash."""
    program = simplified(given)
    layers, same = fused_layers(program)
    forms = choose_forms(matrices(program), optimise)
    writer = LayerWriter(CText(), dict(program.values), {}, forms=forms)
    _note_lifetimes(writer, program, layers, same)
    for place, each in enumerate(program.inputs):
        value = each.value
        writer.text.kinds[f"input{place}"] = f"const {short_type(value)} *"
        inner = value.shape[-1] if value.shape else 1
        writer.stored[value.name] = Stored(f"input{place}", value, None, inner)
        last = writer.last_use.get(value.name, 0)
        writer.buffers.append(Buffer(f"codes of {each.placeholder}", bytes_of(value), -1, last))
    waiting = list(same.items())
    for number, layer in enumerate(layers):
        writer.number = writer.text.layer = number
        _add_reshaped(writer, waiting)
        write_layer(layer.head, layer, writer)
    _add_reshaped(writer, waiting)
    writer.number = writer.text.layer = len(layers)
    _write_outputs(writer, program)
    for name in program.outputs:  # written by some layer, or copied at the end
        value = program.values[name]
        writer.buffers.append(Buffer(f"codes of {name}", bytes_of(value), 0, len(layers)))
    return CProgram(program, layers, writer, max(place_buffers(writer.buffers), ALIGNMENT))


def matrices(program: IntegerProgram) -> dict[str, WeightMatrix]:
    """The constant matrices of products that have columns of 16-bit numbers, by their results."""
    values, found = program.values, {}
    for step in program.steps:
        if isinstance(step, Product | Convolution) and as_matrix(step, values[step.sources[0]]):
            rows = step.weight.reshape(len(step.weight), -1)
            largest = reach(step, [values[step.sources[0]]])
            found[step.out.name] = WeightMatrix(rows, step.out.size // len(rows), largest)
    return found


def _note_lifetimes(
    writer: LayerWriter, program: IntegerProgram, layers: list[Layer], same: dict[str, str]
) -> None:
    """Take note of the last layer that reads each value, and of what goes to the caller."""
    for number, layer in enumerate(layers):
        for name in layer.sources:
            writer.last_use[name] = number
    for place, name in enumerate(program.outputs):
        writer.last_use[name] = len(layers)
        kind = short_type(program.values[name])
        writer.text.kinds[f"output{place}"] = f"{kind} *"
        if name not in writer.wanted and name not in same:
            writer.wanted[name] = f"output{place}"
    for name, source in reversed(same.items()):
        last = max(writer.last_use.get(name, 0), writer.last_use.get(source, 0))
        writer.last_use[source] = last


def _add_reshaped(writer: LayerWriter, waiting: list[tuple[str, str]]) -> None:
    """Let reshaped values be where what they are made of is."""
    for name, source in list(waiting):
        if source in writer.stored:
            found, value = writer.stored[source], writer.values[name]
            writer.stored[name] = Stored(found.name, value, found.order, found.inner, found.buffer)
            waiting.remove((name, source))


def _write_outputs(writer: LayerWriter, program: IntegerProgram) -> None:
    """Copy results to the caller that are not written there at once."""
    for place, name in enumerate(program.outputs):
        found, wanted = writer.stored[name], f"output{place}"
        if found.name == wanted:
            continue
        if found.order is not None:
            lines = reordering(found, wanted)
        else:
            lines = list(loops((found.value.size,), [f"{wanted}[i0] = {found.name}[i0];"]))
        writer.text.call(lines, f"{name} for the caller")


def parameters(made: CProgram) -> list[str]:
    """The parameters of the function that takes codes."""
    found = [
        f"const {value_type(value)} input{place}[{value.size}]"
        for place, value in enumerate(made.inputs)
    ]
    found += [
        f"{value_type(value)} output{place}[{value.size}]"
        for place, value in enumerate(made.outputs)
    ]
    return [*found, "void *scratch"]


def source_text(made: CProgram, entries: FloatEntries, name: str, checksum: str) -> str:
    """The file ``NAME.c``."""
    writer, text = made.writer, made.writer.text
    arrays = [
        f"    {kind} *const {array} = ({kind} *)(memory + {writer.buffers[buffer].offset});"
        for array, (kind, buffer) in writer.arrays.items()
        if array in text.used
    ]
    inner = [*(f"{kind}{each}" for kind, each in pointers(made)), "unsigned char *memory"]
    unused = [
        f"    (void)input{place};"
        for place in range(len(made.inputs))
        if f"input{place}" not in text.used
    ]
    upper = name.upper()
    code = "\n".join(writer.code.values())
    parts = [
        f"/* {name}: a quantised network, by chop {__version__}; program {checksum}. */",
        f'#include "{name}.h"\n',
        "#include <string.h>\n",
        PRELUDE,
        *([WINDOW] if "struct window" in code + "".join(text.functions) else []),
        *([DSP] if "MODEL_" in code else []),
        *(ROUNDING[each] for each in sorted(writer.needs)),
        code,
        *text.data,
        "",
        *text.functions,
        f"static void run({', '.join(inner)}) {{",
        *arrays,
        *unused,
        "    (void)memory;",
        *text.body,
        f"    MODEL_LAYER({len(made.layers) + 1});",
        "}\n",
        scratch_code(upper),
        f"int {name}_predict({', '.join(parameters(made))}) {{",
        "    unsigned char *memory = usable(scratch);",
        f"    if (memory == 0) return {upper}_BAD_SCRATCH;",
        f"    run({', '.join([*(f'({kind}){each}' for kind, each in pointers(made)), 'memory'])});",
        f"    return {upper}_OK;",
        "}",
        *entries.source(made, name),
    ]
    return "\n".join([*parts, ""])


def arguments(made: CProgram) -> list[str]:
    """The names of inputs and outputs."""
    names = [f"input{place}" for place in range(len(made.inputs))]
    return [*names, *(f"output{place}" for place in range(len(made.outputs)))]


def pointers(made: CProgram) -> list[tuple[str, str]]:
    """Types of pointers to inputs and outputs inside the file, and their names."""
    kinds = [f"const {short_type(value)} *" for value in made.inputs]
    kinds += [f"{short_type(value)} *" for value in made.outputs]
    return list(zip(kinds, arguments(made), strict=True))


def scratch_code(upper: str) -> str:
    """A function that returns the memory to use; none if the caller's cannot be used."""
    return f"""\
#ifdef {upper}_STATIC_SCRATCH
static union {{
    uint64_t aligned;
    unsigned char bytes[{upper}_SCRATCH_BYTES];
}} own;
#endif

static unsigned char *usable(void *scratch) {{
#ifdef {upper}_STATIC_SCRATCH
    if (scratch == 0) return own.bytes;
#endif
    return (uintptr_t)scratch % {upper}_SCRATCH_ALIGNMENT ? 0 : (unsigned char *)scratch;
}}
"""


def header_text(made: CProgram, entries: FloatEntries, name: str, checksum: str) -> str:
    """The file ``NAME.h``."""
    upper = name.upper()
    sizes = []
    for side, values in (("INPUT", made.inputs), ("OUTPUT", made.outputs)):
        for place, value in enumerate(values):
            mark = str(place) if len(values) > 1 else ""
            sizes.append(f"/* {comment_line(str(value))} */")
            sizes.append(f"#define {upper}_{side}{mark}_SIZE {value.size}")
            if value.is_scaled and value.unit.size == 1:
                unit = float(value.unit.item()).hex()
                sizes.append(f"#define {upper}_{side}{mark}_SCALE {unit} /* of the code 1 */")
            elif value.frac.size == 1 and not value.is_scaled:
                sizes.append(f"#define {upper}_{side}{mark}_FRAC {int(value.frac.reshape(-1)[0])}")
    lines = [
        f"/* {comment_line(name)}: a quantised network, by chop {__version__}.",
        "   The number of a code is code * 2**-FRAC, or code * SCALE where a header has that.",
        "   Rows are in the order of the network.",
        "   All functions are re-entrant: they use no memory but the caller's and the stack. */",
        f"#ifndef {upper}_H\n#define {upper}_H\n",
        "#include <stdint.h>\n",
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
        f'#define {upper}_VERSION "{__version__}"',
        f'#define {upper}_CHECKSUM "{checksum}"',
        f"#define {upper}_OK 0",
        f"#define {upper}_BAD_SCRATCH 1",
        f"#define {upper}_SCRATCH_BYTES {made.scratch_bytes}",
        "#ifdef __AVR__ /* which aligns nothing */",
        f"#define {upper}_SCRATCH_ALIGNMENT 1\n#else",
        f"#define {upper}_SCRATCH_ALIGNMENT {ALIGNMENT}\n#endif\n",
        *sizes,
        "",
        "/* Codes in, codes out. scratch: SCRATCH_BYTES bytes aligned to SCRATCH_ALIGNMENT; it may",
        f"   be 0 if {upper}_STATIC_SCRATCH is defined where {name}.c is compiled, and calls then",
        f"   share memory. Returns {upper}_OK, or {upper}_BAD_SCRATCH. */",
        f"int {name}_predict({', '.join(parameters(made))});",
        *entries.header(made, name),
        "\n#ifdef __cplusplus\n}\n#endif\n#endif",
    ]
    return "\n".join([*lines, ""])


def row_program(made: CProgram, entries: FloatEntries, name: str) -> str:
    """C that reads rows of codes as text, and prints the codes of the outputs, a row in a line.

    With the argument ``float`` it reads features, and prints the bits of scores and the class.
    """
    upper = name.upper()
    sides = [*(("input", value) for value in made.inputs), *(("output", v) for v in made.outputs)]
    names = arguments(made)
    buffers = "\n".join(
        f"static {value_type(value)} {each}[{value.size}];"
        for each, (_, value) in zip(names, sides, strict=True)
    )
    reads = "\n".join(
        f"        for (int i = 0; i < {value.size}; i++) {{\n"
        f'            if (scanf("%lld", &code) != 1) return 0;\n'
        f"            input{place}[i] = code;\n        }}"
        for place, value in enumerate(made.inputs)
    )
    prints = "\n".join(
        f"        for (int i = 0; i < {value.size}; i++) "
        f'printf("%lld ", (long long)output{place}[i]);'
        for place, value in enumerate(made.outputs)
    )
    floats = entries.row_program(made, name)
    call = "    (void)argc, (void)argv;\n"
    if floats:
        call = '    if (argc > 1 && strcmp(argv[1], "float") == 0) return float_rows();\n'
    return (
        f'#include "{name}.h"\n\n#include <stdio.h>\n#include <string.h>\n\n{buffers}\n'
        f"static uint64_t scratch[({upper}_SCRATCH_BYTES + 7) / 8];\n\n{floats}"
        f"int main(int argc, char **argv) {{\n    long long code;\n"
        f"{call}    for (;;) {{\n{reads}\n"
        f"        if ({name}_predict({', '.join(names)}, scratch) != {upper}_OK) return 1;\n"
        f'{prints}\n        printf("\\n");\n    }}\n}}\n'
    )
