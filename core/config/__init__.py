"""The stages' options, one pydantic model per stage."""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
