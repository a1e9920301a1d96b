"""Errors of reading logs in bulk and of Spark; each has a hint that says what to do."""

from veen.core.catalogue import install_hint
from veen.core.errors import StatedError


class PipelineError(StatedError):
    """Base of the errors of bulk work: reading, folding, querying, loading."""


class SparkMissing(PipelineError):
    """pyspark is not installed."""

    hint = f"{install_hint('spark')} `--engine python` needs neither Spark nor Java."


class SparkFailed(PipelineError):
    """A Spark job that failed for good, or a Java virtual machine that ended before it could be used."""

    hint = "`veen spark check` looks at Java and Spark; the setting spark.veen.log names a file for all that they say."


class JavaMissing(PipelineError):
    """No Java, or a version that Spark cannot use."""

    hint = "Install a JRE of version 17 or newer (apt install openjdk-17-jre-headless) and set JAVA_HOME if need be."


class ConnectUnsupported(PipelineError):
    """Spark Connect without a server, or an operation that needs a SparkContext."""

    hint = "Name a server (SPARK_REMOTE=sc://HOST:PORT), use a classic session, or `--engine python`, which needs none."


class ExecutorUnfit(PipelineError):
    """A Python on an executor that lacks modules of the tasks, or whose version differs from the driver's."""

    hint = (
        "Install VEEN with the extra spark where executors run, or let it travel:"
        " veen spark submit --master URL --ship all COMMAND"
    )


class SubmitFailed(PipelineError):
    """spark-submit ended before its command did."""

    hint = "Read what spark-submit printed; `veen spark check --master URL` tries the cluster."


class OptionError(PipelineError):
    """An unknown option or column of the data source, or an invalid value."""

    hint = 'docs/pipeline.md lists the options and columns of format("veen").'


class SourceDamaged(PipelineError):
    """A damaged entry, where the reader was told to stop at the first one."""

    hint = "Run `veen audit run` on the directory: it goes on after damage and names every place."
