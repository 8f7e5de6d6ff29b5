"""Task functions that Spark tests run on pools, which import this module by its name."""

import functools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from taskmesh import task


@task
def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": batch["id"], "twice": pc.multiply(batch["id"], 2)})


@task
def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@task
def evens(batch: pa.RecordBatch) -> pa.Table:
    return pa.table(batch).filter(pc.equal(pc.bit_wise_and(pa.table(batch)["id"], 1), 0))


@task
def nothing(batch: pa.RecordBatch) -> None:
    return None


@task
def in_two(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    half = batch.num_rows // 2
    yield batch.slice(0, half)
    yield batch.slice(half)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not me")


class Broken(Exception):
    """Cannot be remade from what it is pickled as."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def fail_as(kind: str):
    """The task that fails in this way."""
    return functools.partial(_fail, kind)


def _fail(kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    match kind:
        case "plain":
            raise ValueError("no good row")
        case "caused":
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("no good row") from error
        case "unpicklable":
            raise Unpicklable("no good row")
        case "broken":
            raise Broken("no good row", "no way")
        case "exit":
            raise SystemExit("no good row")
        case "stop":
            raise StopIteration("no good row")
    return batch


def returns(kind: str):
    """The task that returns something that does not fit `id long, name string not null`."""
    return functools.partial(_return, kind)


def _return(kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    count = batch.num_rows
    ids, names = pa.array(range(count), pa.int64()), pa.array(["x"] * count)
    good = {"id": ids, "name": names}
    changes = {
        "int32": {"id": ids.cast(pa.int32())},
        "decimal": {"id": ids.cast(pa.decimal128(20, 0))},
        "whole floats": {"id": ids.cast(pa.float64())},
        "dictionary": {"name": names.dictionary_encode()},
        "large text": {"name": names.cast(pa.large_string())},
        "broken floats": {"id": pa.array([number + 0.5 for number in range(count)])},
        "text": {"id": names},
        "extra": {"more": ids},
        "null": {"name": pa.array([None] * count, pa.string())},
    }
    others = {
        "swapped": pa.RecordBatch.from_pydict({"name": names, "id": ids}),
        "missing": pa.RecordBatch.from_pydict({"id": ids}),
        "no batch": 7,
        "twice": pa.RecordBatch.from_arrays([ids, ids, names], names=["id", "id", "name"]),
    }
    return others[kind] if kind in others else pa.RecordBatch.from_pydict({**good, **changes[kind]})


def times(kind: str):
    """The task that returns a column `at` of this kind of timestamp."""
    return functools.partial(_times, kind)


def _times(kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    unit, _, zone = kind.partition(" ")
    step = 1 if unit == "ns" else 1000
    whole = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    values = [
        number * whole + (step if unit == "ns" and zone == "odd" else 0) for number in range(batch.num_rows)
    ]
    tz = None if zone in {"", "odd"} else zone
    return pa.RecordBatch.from_pydict({"at": pa.array(values, pa.timestamp(unit, tz))})


@task
def frame(given):
    given["twice"] = given["id"] * 2
    return given


@task
def rows(given):
    return [{"twice": 2 * row["id"], "id": row["id"]} for row in given]


@task
def frail(batch):
    """Fails wherever an id ends in 7."""
    if any(number % 10 == 7 for number in batch["id"].to_pylist()):
        raise ValueError("a seven")
    return double(batch)


def lengths(words):
    return pc.utf8_length(words)


def shout(words, times):
    return (words.str.upper() + "!") * times


def describe(number, word):
    if number == 3:
        raise ValueError("not three")
    return None if word is None else {"number": number, "word": word}


def short(words):
    return words[:1]


def split(text):
    return text.split()


def count(items):
    yield len(items)


def unpicklable(item):
    return (value for value in [item])


def plus_one(row):
    return (row[0] + 1, *row[1:])
