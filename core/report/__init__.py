"""Exports a run as HTML or JSON."""

from core.report.page import report_page, write_report
from core.report.settings import list_settings, read_settings, settings_file

__all__ = ["list_settings", "read_settings", "report_page", "settings_file", "write_report"]
