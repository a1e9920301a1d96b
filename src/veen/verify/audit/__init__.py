"""The audit of a log: every invariant that it can show, on one machine or on a cluster (DESIGN §7)."""

from veen.verify.audit.context import LEVELS, AuditOptions, Level
from veen.verify.audit.engine import AuditEngine, ProcessesEngine, PythonEngine
from veen.verify.audit.findings import CODES, LogFinding
from veen.verify.audit.previous import Previous, PreviousError
from veen.verify.audit.run import AuditResult, LabelResult, audit

__all__ = [
    "CODES",
    "LEVELS",
    "AuditEngine",
    "AuditOptions",
    "AuditResult",
    "LabelResult",
    "Level",
    "LogFinding",
    "Previous",
    "PreviousError",
    "ProcessesEngine",
    "PythonEngine",
    "audit",
]
