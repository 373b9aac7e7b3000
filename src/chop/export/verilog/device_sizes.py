"""What devices have: look-up tables and block memories, as their makers' data sheets say."""

from dataclasses import dataclass

from chop.export.verilog.netlist import CircuitError
from chop.registry import Registry

RAMB36_BITS = 36_864


@dataclass(frozen=True)
class DeviceSize:
    """Look-up tables, their inputs, and the bits of block memories."""

    luts: int
    lut_inputs: int
    block_bits: int
    """Bits of all block memories."""

    @property
    def block_rams(self) -> float:
        """Block memories, counted as RAMB36."""
        return self.block_bits / RAMB36_BITS

    def refuse(self, name: str, luts: float, block_rams: float) -> None:
        """Raise if a circuit is estimated to need more than there is."""
        if luts > self.luts:
            raise CircuitError(
                f"verilog: the circuit would need about {luts:,.0f} look-up tables, and {name} has "
                f"{self.luts:,}: give more cycles, narrower formats or a larger device"
            )
        if block_rams > self.block_rams:
            raise CircuitError(
                f"verilog: the memories of the circuit would need about {block_rams:,g} RAMB36, and "
                f"{name} has as much as {self.block_rams:,.0f}: take narrower formats or a larger "
                "device"
            )


DEVICE_SIZES: Registry[DeviceSize] = Registry("device")
for _name, _size in {
    "ecp5-25k": DeviceSize(24_288, 4, 56 * 18_432),
    "ecp5-45k": DeviceSize(43_848, 4, 108 * 18_432),
    "ecp5-85k": DeviceSize(83_640, 4, 208 * 18_432),
    "xc7z020": DeviceSize(53_200, 6, 140 * RAMB36_BITS),
    "xc7a100t": DeviceSize(63_400, 6, 135 * RAMB36_BITS),
    "xczu3eg": DeviceSize(70_560, 6, 216 * RAMB36_BITS),
}.items():
    DEVICE_SIZES.add(_name, _size)
