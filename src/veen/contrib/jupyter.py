"""Jupyter: small charts that a notebook draws by itself."""

from veen.lake.log.charts import Chart, bars

__all__ = ["Chart", "bars"]
