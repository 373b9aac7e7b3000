"""Passes that fill the metadata."""

from chop.passes.graph.analysis.add_metadata.add_metadata import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
)

__all__ = ["add_common_metadata_analysis_pass", "add_software_metadata_analysis_pass"]
