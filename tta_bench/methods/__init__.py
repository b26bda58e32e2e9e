"""Test-time adaptation methods: one paper, one file. A new method is one file and one line here."""

from tta_bench.methods.base import TTAMethod
from tta_bench.methods.dpcore import DPCore
from tta_bench.methods.dpcore_simplified import DPCoreSimplified
from tta_bench.methods.source import Source
from tta_bench.methods.tent import Tent

METHODS: dict[str, type[TTAMethod]] = {
    "source": Source,
    "tent": Tent,
    "dpcore": DPCore,
    "dpcore_simplified": DPCoreSimplified,
}

__all__ = ["METHODS", "DPCore", "DPCoreSimplified", "Source", "TTAMethod", "Tent"]
