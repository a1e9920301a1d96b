"""The audit of a log: every invariant that it can show, on one machine or on a cluster (DESIGN §7)."""

from veen.pipeline.audit.context import LEVELS, AuditOptions, Level
from veen.pipeline.audit.engine import Engine, PythonEngine
from veen.pipeline.audit.findings import CODES, Finding
from veen.pipeline.audit.previous import Previous, PreviousError
from veen.pipeline.audit.run import AuditResult, LabelResult, audit

__all__ = [
    "CODES",
    "LEVELS",
    "AuditOptions",
    "AuditResult",
    "Engine",
    "Finding",
    "LabelResult",
    "Level",
    "Previous",
    "PreviousError",
    "PythonEngine",
    "audit",
]
