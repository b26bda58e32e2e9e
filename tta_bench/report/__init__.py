"""Reports from run folders: tables for the terminal, Markdown, LaTeX, CSV and an HTML page. Never imports torch."""

from tta_bench.report.table import comparison_tables
from tta_bench.report.write import FORMATS, format_of, report_figures, report_text

__all__ = ["FORMATS", "comparison_tables", "format_of", "report_figures", "report_text"]
