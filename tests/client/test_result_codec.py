"""result_codec="safe": results are plain data, and the caller's program unpickles nothing."""

import pickle

import pytest

from taskmesh import Mesh
from taskmesh.errors import ConfigError, RemoteError, SerializationError
from taskmesh.serialize import payload
from tests.net import workload

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def mesh():
    with Mesh(workers=1, result_codec="safe") as mesh:
        yield mesh


@pytest.fixture
def no_pickle(monkeypatch):
    """Whatever would unpickle here fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(payload, "decode", refuse)
    monkeypatch.setattr("taskmesh.serialize.exceptions.decode", refuse)
    monkeypatch.setattr("taskmesh.future.loads", refuse)


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", b"bytes", [1, [2]], {"a": {"b": [None, True]}}])
def test_plain_data_comes_back_and_nothing_is_unpickled(mesh, no_pickle, value):
    assert mesh.submit(workload.echo, value).result(20) == value


def test_a_large_result_comes_back(mesh, no_pickle):
    assert mesh.submit(workload.zeros, 60_000).result(20) == bytes(60_000)


def test_a_map_keeps_its_order_and_its_errors(mesh, no_pickle):
    results = mesh.map(workload.add, [1, 2, "x", 4], [1, 2, 3, 4], chunksize=2, timeout=20)

    assert [next(results), next(results)] == [2, 4]
    with pytest.raises(RemoteError, match="TypeError"):
        next(results)
    assert next(results) == 8


def test_an_exception_is_told_and_not_rebuilt(mesh, no_pickle):
    error = mesh.submit(workload.refuse, "no").exception(20)

    assert type(error) is RemoteError
    assert "Refusal: no" in str(error)


def test_what_is_no_plain_data_fails_with_the_cure(mesh, no_pickle):
    error = mesh.submit(workload.echo, object).exception(20)

    assert isinstance(error, SerializationError)
    assert "result_codec" in str(error)


def test_an_unknown_codec_is_refused():
    with pytest.raises(ConfigError, match="'pickle' or 'safe'"):
        Mesh(workers=1, result_codec="json")


def test_a_pickle_in_place_of_plain_data_is_a_typed_error():
    with pytest.raises(SerializationError, match="no plain data"):
        payload.loads_plain(pickle.dumps({"a": object}))
