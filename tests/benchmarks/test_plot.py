"""The pictures of the runs: no title is cut, and each panel says what its scale is."""

import json

from matplotlib import pyplot

from benchmarks.plot import TITLE_WIDTH, panel
from benchmarks.report import summarise
from benchmarks.tables import RESULTS, turns_of


def test_each_panel_names_its_scale_and_no_title_is_wider_than_it():
    summaries = summarise(turns_of(json.loads((RESULTS / "peers.json").read_text())))
    for key, row in summaries.items():
        chart, axis = pyplot.subplots()
        panel(axis, key, row)

        assert axis.get_xlabel().startswith("logarithmic" if axis.get_xscale() == "log" else "linear")
        assert max(map(len, axis.get_title(loc="left").splitlines())) <= TITLE_WIDTH
        pyplot.close(chart)
