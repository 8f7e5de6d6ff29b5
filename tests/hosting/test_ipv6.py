"""A mesh over IPv6, with keys and without."""

from taskmesh import Mesh
from tests.harness.cluster import Cluster
from tests.harness.ipv6 import ONLY_WITH_IPV6
from tests.harness.keys import Ring
from tests.hosting import workload

pytestmark = ONLY_WITH_IPV6
SIX = "tcp://[::1]:0"


def test_a_hub_its_pool_and_a_client_meet(programs):
    address = programs.hub(SIX)[1]
    programs.worker(address, "--name", "six")
    with Mesh(address) as mesh:
        assert address.startswith("tcp://[::1]:")
        assert list(mesh.map(abs, range(-3, 0))) == [3, 2, 1]
        assert mesh.submit(workload.span, 0.0).result(20)


def test_they_meet_with_keys(programs, ring: Ring):
    cluster = Cluster.keyed(programs, ring, bind=SIX)
    with cluster.mesh() as mesh:
        assert mesh.submit(abs, -3).result(20) == 3


def test_a_mesh_that_listens_takes_another_client():
    with Mesh(bind=SIX, workers=1) as mesh, Mesh(mesh.address) as other:
        assert other.submit(abs, -3).result(20) == 3
