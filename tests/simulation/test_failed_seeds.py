"""Seeds that have failed once: each is a test by events as well, since worlds change and seeds with them."""

import pytest

from tests.simulation.simulation import World


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(500007871, id="a lone task went past what was due at the same moment"),
        pytest.param(180453117, id="a chunk was kept for its client, its spec was not"),
        pytest.param(5515864, id="attempt 2 had begun at one pool, and was handed back by another"),
        pytest.param(5525704, id="said to run, and handed back unstarted after the hub's death"),
        pytest.param(180450852, id="refused by one pool, given up, and no other had started it"),
        pytest.param(861470818193, id="all tasks had ended, and what was given up had not come yet"),
        pytest.param(929178142321, id="a chunk was given up, and ran again when its client left"),
        pytest.param(252158860616, id="a goodbye came before what was said earlier, and counted as new"),
        pytest.param(252158862594, id="no suspect any more, and still handed out before all others"),
        pytest.param(252158860173, id="a twin that had ended was started again by an earlier crash"),
        pytest.param(
            53125666770, id="after the clock went back, what was submitted again waited for a lease"
        ),
        pytest.param(53125670035, id="an old Hello came late, its pool counted as back with nothing"),
        pytest.param(26, id="a sink was closed without a link and opened again, with the old numbers"),
        pytest.param(48, id="a task after one whose outcome was in a sink: nothing was known of it"),
        pytest.param(182, id="a bad end of the journal went past its sink"),
        pytest.param(2380, id="a journal was emptied that had nothing: Submits were not acknowledged"),
        pytest.param(901120, id="set aside, its outcome was taken, and it ran again as the first"),
        pytest.param(615396210539, id="told to leave in the moment in which its lease was over"),
        pytest.param(100000631, id="set aside, it was handed the end of an ignored result in place of that"),
        pytest.param(110001580, id="skipped, and its client heard of that from the next hub"),
        pytest.param(120001897, id="its links closed before its client was back, its work ran twice"),
        pytest.param(150004774, id="the end of a blocked task was kept, that of its cause was lost"),
        pytest.param(150010609, id="it lacked values, its client started over, and its number was passed"),
        pytest.param(160005314, id="cancelled and listed, and dropped before the next hub had answered"),
        pytest.param(200001298, id="put off once more by a clock set back, and a pool had run it"),
        pytest.param(200001389, id="its pool was lost before its chunk was entered, and so was its number"),
        pytest.param(240003298, id="its upstream was not written, its client was silent and looked idle"),
        pytest.param(250005710, id="it ran again for its result, and the journal still had its first end"),
        pytest.param(310000228, id="somebody else spoke under its id, and it heard the answer"),
        pytest.param(
            265001215, id="its last word was for a hub that had died, it counted as there at the next"
        ),
        pytest.param(150009980, id="an old Hello listed it, its pool had ended it at the hub before"),
    ],
)
def test_a_seed_that_failed_keeps_every_promise(seed):
    World(seed).run()
