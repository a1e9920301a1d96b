"""What the pipeline says when it cannot go on."""

from veen.core.errors import VeenError

__all__ = ["JavaMissing", "OptionError", "PipelineError", "SourceDamaged", "SparkMissing"]


class PipelineError(VeenError):
    """Base of the errors of this package."""

    hint = "Run `veen doctor`: it checks Java, Spark and the data directory."

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


class SparkMissing(PipelineError):
    """pyspark is not installed."""

    hint = "Install it with: pip install 'veen[spark]'. `--engine python` needs neither Spark nor Java."


class JavaMissing(PipelineError):
    """No Java, or one that Spark cannot use."""

    hint = "Install a JRE of version 17 or newer (apt install openjdk-17-jre-headless) and set JAVA_HOME if need be."


class OptionError(PipelineError):
    """An option or a column that the data source does not know, or a value it cannot use."""

    hint = 'docs/pipeline.md lists the options and columns of format("veen").'


class SourceDamaged(PipelineError):
    """A byte of the log is not as it must be, and the reader was told to stop at the first such one."""

    hint = "Run `veen audit run` on the directory: it goes on after damage and names every place."
