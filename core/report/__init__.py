"""Exports a run as HTML or JSON; importing it loads neither the database nor the report."""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
