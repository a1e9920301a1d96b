"""Errors of reading logs in bulk and of Spark; each has a hint that says what to do."""

from veen.core.errors import StatedError
from veen.core.extras import install_hint


class PipelineError(StatedError):
    """Base of the errors of bulk work: reading, folding, querying, loading."""


class SparkMissing(PipelineError):
    """pyspark is not installed."""

    hint = f"{install_hint('spark')} `--engine python` needs neither Spark nor Java."


class SparkFailed(PipelineError):
    """A job of Spark failed for good, or the Java virtual machine ended before it could be used."""

    hint = "`veen spark check` looks at Java and Spark; the setting spark.veen.log names a file for all that they say."


class JavaMissing(PipelineError):
    """No Java, or one that Spark cannot use."""

    hint = "Install a JRE of version 17 or newer (apt install openjdk-17-jre-headless) and set JAVA_HOME if need be."


class ConnectUnsupported(PipelineError):
    """Spark Connect without a server, or for what it gives its clients no way to: it has no SparkContext."""

    hint = "Name a server (SPARK_REMOTE=sc://HOST:PORT), use a classic session, or `--engine python`, which needs none."


class ExecutorUnfit(PipelineError):
    """The Python of an executor lacks what tasks need, or is another one than the driver's."""

    hint = (
        "Install VEEN with the extra spark where executors run, or let it travel:"
        " veen spark submit --master URL --ship all COMMAND"
    )


class SubmitFailed(PipelineError):
    """spark-submit ended before the command that it was given did."""

    hint = "Read what spark-submit printed; `veen spark check --master URL` tries the cluster."


class OptionError(PipelineError):
    """An option or a column that the data source does not know, or a value it cannot use."""

    hint = 'docs/pipeline.md lists the options and columns of format("veen").'


class SourceDamaged(PipelineError):
    """A byte of the log is not as it must be, and the reader was told to stop at the first such one."""

    hint = "Run `veen audit run` on the directory: it goes on after damage and names every place."
