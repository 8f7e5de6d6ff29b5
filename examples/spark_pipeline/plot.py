"""The report as a picture, and its main findings in words."""

from pathlib import Path

import matplotlib
import pyarrow.compute as pc
import pyarrow.parquet as pq

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LARGEST = 8


def draw(folder: Path, file: Path) -> list[str]:
    """Draw delays by day and by night for the largest carriers; give what is to be printed."""
    table = pq.read_table(folder / "report")
    sums = table.group_by("carrier").aggregate([(name, "sum") for name in table.column_names[2:]])
    rows = sums.sort_by([("flights_sum", "descending")]).slice(0, LARGEST).to_pylist()
    names = [row["carrier"] for row in rows]
    day = [row["delay_by_day_sum"] / max(1, row["by_day_sum"]) for row in rows]
    night = [row["delay_at_night_sum"] / max(1, row["at_night_sum"]) for row in rows]
    months = table.group_by("month").aggregate([("minutes", "sum"), ("lit_minutes", "sum")]).sort_by("month")
    lit = pc.divide(pc.multiply(months["lit_minutes_sum"], 100), months["minutes_sum"]).to_pylist()

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    places = range(len(names))
    left.bar([place - 0.2 for place in places], day, 0.4, label="mostly by day", color="#e0a030")
    left.bar([place + 0.2 for place in places], night, 0.4, label="mostly by night", color="#30507a")
    left.set_xticks(list(places), names)
    left.set_ylabel("minutes late on arrival, mean")
    left.legend()
    right.bar(months["month"].to_pylist(), lit, color="#e0a030")
    right.set_xlabel("month of 2013")
    right.set_ylabel("flying time in daylight, %")
    figure.savefig(file, dpi=100)
    plt.close(figure)

    twins = pq.read_table(folder / "twins")
    return [
        f"in daylight: {min(lit)} % of the flying time in the darkest month, {max(lit)} % in the brightest",
        "late by day and by night, in minutes: "
        + ", ".join(f"{name} {a:.0f}/{b:.0f}" for name, a, b in zip(names, day, night, strict=True)),
        f"{twins.num_rows} pairs of source files are nearly the same",
    ]
