"""result_codec="safe": results are plain data, and the caller's program unpickles nothing."""

import pytest

from taskmesh import Mesh
from taskmesh.errors import ConfigError, RemoteError, SerializationError
from taskmesh.messages.runs import Value
from taskmesh.serialize import payload
from taskmesh.serialize.dependencies import provided, value_of
from tests.hosting import workload

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(params=[Mesh, Mesh.inline], ids=["processes", "inline"])
def mesh(request):
    with request.param(workers=1, result_codec="safe") as mesh:
        yield mesh


@pytest.fixture
def no_pickle(monkeypatch):
    """Whatever would unpickle here fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(payload, "decode", refuse)
    monkeypatch.setattr("taskmesh.serialize.exceptions.decode", refuse)
    monkeypatch.setattr("taskmesh.client.futures.future.loads", refuse)


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


class Bomb:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise AssertionError("unpickled")


LARGE = [b"x" * (1 << 20)]
SECRET = {"a": Bomb()}


@pytest.mark.parametrize("value", [SECRET, [*LARGE, SECRET]], ids=["small", "large"])
@pytest.mark.parametrize("memfd", [True, False])
def test_a_pickle_in_place_of_plain_data_is_a_typed_error(value, memfd):
    pickled = payload.dumps(value, memfd=memfd)

    with pytest.raises(SerializationError, match=r"no plain data.*result_codec='pickle'"):
        payload.loads_plain(pickled)
    with pytest.raises(SerializationError, match="no plain data"), provided([Value(1, pickled)], plain=True):
        value_of(1)


@pytest.mark.parametrize("value", [None, 1, "text", {}, {"a": [1, None]}, LARGE])
def test_plain_data_says_itself_what_it_is(value):
    """Clients of both kinds meet: by a key, a promise, an attachment or a sink."""
    plain = payload.dumps_plain(value)

    assert payload.loads(plain) == payload.loads_plain(plain) == value
    with provided([Value(1, plain)]):
        assert value_of(1) == value


def test_scalars_are_plain_data_whoever_has_made_them(mesh, no_pickle):
    with provided([Value(1, payload.dumps(3))], plain=True):
        assert value_of(1) == 3


def test_the_client_s_own_value_may_be_any(mesh):
    own = mesh.put({"a": object})

    assert mesh.submit(len, own).result(20) == 1


def test_a_result_that_was_taken_can_be_an_argument(mesh):
    first = mesh.submit(workload.echo, {"a": [1]})
    assert first.result(20) == {"a": [1]}

    assert mesh.submit(workload.echo, [first]).result(20) == [{"a": [1]}]
