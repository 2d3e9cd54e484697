"""The workspace: a folder of artifacts, runs and a regenerable cache.

An artifact, <kind>s/<name>/ with a `manifest.json`, appears atomically.
"""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
