"""The command of a Python operator in Spark's plan: functions of one kind, and the columns that they take."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Extent = Literal["batches", "groups", "partition"]
"""The rows that a function has to see together: those of a batch, of a group, or of a partition."""

PICKLED: Final = frozenset({100, 300})
"""Kinds whose rows are pickled: `udf` and `udtf` without Arrow."""
TABLE_FUNCTIONS: Final = frozenset({300, 301, 302})
"""Kinds of table functions (UDTFs)."""
EXTENTS: Final[dict[int, Extent]] = {
    100: "batches",  # udf without Arrow
    101: "batches",  # udf
    200: "batches",  # pandas_udf, Series to Series
    250: "batches",  # arrow_udf, Array to Array
    201: "groups",  # applyInPandas
    202: "groups",  # pandas_udf, Series to scalar
    203: "groups",  # the same over a window
    206: "groups",  # cogroup().applyInPandas
    209: "groups",  # applyInArrow
    210: "groups",  # cogroup().applyInArrow
    215: "groups",  # applyInArrow, iterator form
    216: "groups",  # applyInPandas, iterator form
    217: "groups",  # pandas_udf, Iterator of Series to scalar
    252: "groups",  # arrow_udf, Array to scalar
    253: "groups",  # the same over a window
    254: "groups",  # arrow_udf, Iterator of Arrays to scalar
    204: "partition",  # pandas_udf, Iterator of Series to Iterator of Series
    205: "partition",  # mapInPandas
    207: "partition",  # mapInArrow
    251: "partition",  # arrow_udf, Iterator of Arrays to Iterator of Arrays
    300: "partition",  # udtf without Arrow
    301: "partition",  # udtf
    302: "partition",  # arrow_udtf
}
"""By Spark's number of the kind (`pyspark.util.PythonEvalType`). Kinds that are missing need the store of
state in Spark's JVM, which only Spark's own workers reach."""
COGROUPS: Final = frozenset({206, 210})


class FunctionCall(msgspec.Struct):
    """One function of a command, or several of which each takes the result of the one before.

    Attributes:
        functions: their places among the command's functions.
        types: of their results, as Spark's JSON, or "#" and the place of a pickle among the functions.
        args: the columns that the first one takes, by position.
        kwargs: those that it takes by name.
    """

    functions: list[int]
    types: list[str]
    args: list[int]
    kwargs: dict[str, int]


class TableFunctionCall(msgspec.Struct):
    """A table function of a command.

    Attributes:
        args: the columns that it takes, by position.
        kwargs: those that it takes by name.
        partitioned_by: the columns that part its table argument.
        returns: its columns, as Spark's JSON.
        name: of the function.
    """

    args: list[int]
    kwargs: dict[str, int]
    partitioned_by: list[int]
    returns: str
    name: str


class PythonCommand(msgspec.Struct):
    """One Python operator of Spark's plan, without its functions.

    Attributes:
        pyspark: the version that gave the command.
        kind: Spark's number of the functions' kind.
        calls: the functions.
        table_call: the table function instead.
        runner_conf: settings of Spark's that conversions ask for.
        eval_conf: properties of the operator.
        modules: names of the files with the job's modules, in the order of Spark's path; their contents come
            after the functions.
    """

    pyspark: str
    kind: int
    calls: list[FunctionCall]
    table_call: TableFunctionCall | None
    runner_conf: dict[str, str]
    eval_conf: dict[str, str]
    modules: list[str] = []


def encode(command: PythonCommand) -> str:
    return msgspec.json.encode(command, order="sorted").decode()


def decode(text: str) -> PythonCommand:
    """The command of a text.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return _decoder.decode(text)


_decoder: Final = msgspec.json.Decoder(PythonCommand)
