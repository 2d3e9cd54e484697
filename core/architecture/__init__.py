"""Describes architectures: dimensions, options, config files and weight mappings."""
