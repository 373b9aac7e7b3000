"""Several passes as one call, with the arguments of each by its name."""

from chop.pipelines.pipeline import AutoPipeline, CompressionPipeline

__all__ = ["AutoPipeline", "CompressionPipeline"]
