"""Runs the same job several ways and compares them: `compare` and `Comparison`."""

from hdp.estimator.comparison.figures import Figures, Verdict
from hdp.estimator.comparison.model import Run, Setting, Variant
from hdp.estimator.comparison.report import Comparison
from hdp.estimator.comparison.run import ComparisonInterrupted, compare

__all__ = ["Comparison", "ComparisonInterrupted", "Figures", "Run", "Setting", "Variant", "Verdict", "compare"]
