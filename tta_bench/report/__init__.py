"""Tables from run folders. Never imports torch."""

from tta_bench.report.table import comparison_tables

__all__ = ["comparison_tables"]
