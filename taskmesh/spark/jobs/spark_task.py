"""The Spark task that runs in this process, for error texts, logs and the scope of remembered failures."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import SparkContext, TaskContext


@dataclass(frozen=True, slots=True)
class SparkTask:
    """One execution of a Spark task.

    Attributes:
        app: id of the application.
        stage: Spark's number of the stage.
        partition: number of the partition in the stage.
        attempt: Spark's count of tries, from 0; starts again at 0 when a whole stage is tried again.
        task: Spark's number of this execution, unique in one application.
        query: id of the stream; empty outside of streams.
    """

    app: str = ""
    stage: int = -1
    partition: int = -1
    attempt: int = 0
    task: int = -1
    query: str = ""

    @classmethod
    def here(cls, app: str = "") -> SparkTask:
        """Return the Spark task that runs in this process; an empty one outside of Spark's workers.

        Spark passes the application's id to tasks of a DataFrame's action only, not to those of an RDD or of
        `df.rdd`. So the driver sends it too, as `app`.
        """
        context = TaskContext.get()
        if context is None:
            return cls()
        return cls(
            str(context.getLocalProperty("spark.app.id") or app),
            context.stageId(),
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
            str(context.getLocalProperty("sql.streaming.queryId") or ""),
        )

    def __str__(self) -> str:
        return (
            f"app {self.app}, stage {self.stage}, partition {self.partition}, "
            f"attempt {self.attempt}, task {self.task}"
        )


def app_id() -> str:
    """The id of this driver's application; empty where there is none, as on Connect."""
    context = SparkContext._active_spark_context
    return "" if context is None else str(context.applicationId)
