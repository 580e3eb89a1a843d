"""The night's report: one HTML file that needs nothing else."""

from storage.report.report import write_report

__all__ = ["write_report"]
