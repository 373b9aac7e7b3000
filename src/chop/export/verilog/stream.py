"""An AXI-stream wrapper: one beat is one row; a receiver that waits holds the whole pipeline."""

from collections.abc import Sequence

from chop.errors import ConfigError
from chop.export.verilog.emit import NETTYPE, RESTORE, BusPort

NAME = "top_axis"


def in_bytes(bits: int) -> int:
    """Bits that a stream of whole bytes needs."""
    return -(-bits // 8) * 8


def wrapper(inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int) -> str:
    """The module ``top_axis``: ports side by side, the first in the lowest bits, in whole bytes."""
    if latency == 0:
        raise ConfigError("verilog: a stream needs a clock: give stages of 1 or more")
    reads, gives = sum(port.bits for port in inputs), sum(port.bits for port in outputs)
    wires: list[str] = []
    for bus, ports in (("s_axis_tdata", inputs), ("row", outputs)):
        start = 0
        for port in ports:
            wires.append(f".{port.name}({bus}[{start + port.bits - 1}:{start}])")
            start += port.bits
    wide_in, wide_out = in_bytes(reads), in_bytes(gives)
    padding, idle = wide_out - gives, wide_in - reads
    given = f"{{{padding}'d0, row}}" if padding else "row"
    unused = f"  wire unused = &{{1'b0, s_axis_tdata[{wide_in - 1}:{reads}]}};\n" if idle else ""
    return f"""\
// AXI-stream: a row of codes in each beat, the first element in the lowest bits, padded to bytes.
{NETTYPE}
module {NAME} (
  input wire aclk,
  input wire aresetn,
  input wire [{wide_in - 1}:0] s_axis_tdata,
  input wire s_axis_tvalid,
  output wire s_axis_tready,
  output wire [{wide_out - 1}:0] m_axis_tdata,
  output wire m_axis_tvalid,
  input wire m_axis_tready
);
  wire [{gives - 1}:0] row;
  wire enable = ~m_axis_tvalid | m_axis_tready;
{unused}  top core (
    .clk(aclk), .enable(enable), .reset(~aresetn),
    .valid_in(s_axis_tvalid), .valid_out(m_axis_tvalid),
    {", ".join(wires)}
  );
  assign s_axis_tready = enable;
  assign m_axis_tdata = {given};
endmodule
{RESTORE}"""
