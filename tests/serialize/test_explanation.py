import functools
import re
import sqlite3
import threading
import types

import pytest

from taskmesh.errors import SerializationError
from taskmesh.serialize import payload


class RaisesInReduce:
    def __reduce__(self):
        raise LookupError("no way out")


class Holder:
    __slots__ = ("guard", "other")

    def __init__(self, guard):
        self.guard = guard
        self.other = 0


class Leaves(Holder):
    """Whose lock is not what cannot be pickled: it stays behind."""

    def __init__(self):
        super().__init__(threading.Lock())

    def __getstate__(self):
        return {"a": 1, "source": (x for x in "abc")}


def test_a_database_s_row_is_told_to_be_passed_as_plain_data_not_as_the_database():
    """B8."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    row = connection.execute("select 1 as a").fetchone()
    try:
        with pytest.raises(SerializationError, match=r"Pass tuple\(row\)"):
            payload.dumps_call((row,), {}, where="work")
        with pytest.raises(SerializationError, match="Pass the database's path"):
            payload.dumps_call((connection,), {}, where="work")
    finally:
        connection.close()


def class_with_a_lock():
    class Locked:
        guard = threading.Lock()

    return Locked()


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (lambda lock: [1, {"k": (2, lock)}], r"[1]['k'][1] (type _thread.lock)"),
        (lambda lock: Holder([lock]), ".guard[0] (type _thread.lock)"),
        (lambda lock: types.SimpleNamespace(a=Holder(lock)), ".a.guard (type _thread.lock)"),
        (lambda lock: {lock: 1}, ".keys() (type _thread.lock)"),
        (lambda lock: {"f": lambda: lock}, "['f'], with the variable 'lock' that it closes over (type"),
        (lambda lock: [Holder(lock).__reduce_ex__], "[0].__self__.guard (type"),
        (lambda lock: functools.partial(max, 1, lock), ".args[1] (type"),
        (lambda _: Leaves(), ".source (type generator)"),
        (lambda _: class_with_a_lock(), ".__class__.guard (type _thread.lock)"),
        (lambda _: [1, RaisesInReduce()], "[1] (type tests.serialize.test_explanation.RaisesInReduce)"),
    ],
)
def test_an_error_names_the_part_that_is_to_blame(make, way):
    with pytest.raises(SerializationError, match=re.escape(f"cannot be pickled because of its {way}")):
        payload.dumps_call((make(threading.Lock()),), {}, where="work")
    with pytest.raises(SerializationError, match=re.escape(f"because of its {way}")):
        payload.dumps(make(threading.Lock()))


def test_the_search_for_the_part_ends():
    around = [threading.Lock()]
    around[:0] = [around]
    with pytest.raises(SerializationError, match=r"because of its \[1\] \(type _thread"):
        payload.dumps(around)
    many = [*range(100_000), threading.Lock()]
    with pytest.raises(SerializationError, match=r"the result \(type list\) cannot be pickled: TypeErr"):
        payload.dumps(many)
