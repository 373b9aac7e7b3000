"""Operations without integers of their own, written out as ones that have them."""

from chop.passes.graph.transforms.writing import functions, layers
from chop.passes.graph.transforms.writing.balance import balance_products
from chop.passes.graph.transforms.writing.nodes import write_out

__all__ = ["balance_products", "functions", "layers", "write_out"]
