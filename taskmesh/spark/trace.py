"""Where in a Spark job something happens: for error texts, logs and the scope of remembered failures."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext


@dataclass(frozen=True, slots=True)
class Trace:
    """One execution of a Spark task.

    Attributes:
        attempt: Spark's count of tries, from 0; starts again at 0 when a whole stage is tried again.
        task: Spark's number of this execution, unique in one application. query: of a stream.
    """

    app: str = ""
    stage: int = -1
    partition: int = -1
    attempt: int = 0
    task: int = -1
    query: str = ""

    @classmethod
    def here(cls) -> Trace:
        """The Spark task that runs in this process; of none outside of Spark's workers."""
        context = TaskContext.get()
        if context is None:
            return cls()
        return cls(
            str(context.getLocalProperty("spark.app.id") or ""),
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
