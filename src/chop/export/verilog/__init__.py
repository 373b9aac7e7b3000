"""Integer programs as SystemVerilog: a netlist with exact ranges, pipelined, written, checked."""
