"""Seeds that have failed once: each is a test by events as well, since worlds change and seeds with them."""

import pytest

from taskmesh.testing import World


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(500007871, id="V14: a lone task went past what was due at the same moment"),
        pytest.param(180453117, id="V3c: a chunk was kept for its client, its spec was not"),
    ],
)
def test_a_seed_that_failed_keeps_every_promise(seed):
    World(seed).run()
