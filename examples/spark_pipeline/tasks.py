"""The two steps that are worth other machines: functions over Arrow data, which know nothing of Spark."""

import math
import re
import zlib
from datetime import datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa

from taskmesh import current_task, task

POINTS = 12
SUNRISE = math.sin(math.radians(-0.833))  # the sun's upper edge, through the air
J2000 = datetime.fromisoformat("2000-01-01T12:00:00+00:00").timestamp()

HASHES = 64
SHINGLE = 5
PRIME = (1 << 31) - 1
WORD = re.compile(r"\w+|[^\w\s]")
_chance = np.random.default_rng(13)
FACTORS = _chance.integers(1, PRIME, HASHES, dtype=np.uint64)
SHIFTS = _chance.integers(0, PRIME, HASHES, dtype=np.uint64)


@task
def fly(flights: pa.RecordBatch) -> pa.RecordBatch:
    """Return the minutes that each flight spent in daylight, and the wind against it at takeoff."""
    columns = ["lat", "lon", "to_lat", "to_lon", "takeoff", "minutes", "wind_from", "wind_kt"]
    daylight, headwind = [], []
    for lat, lon, to_lat, to_lon, takeoff, minutes, wind_from, wind_kt in zip(
        *(flights[name].to_pylist() for name in columns), strict=True
    ):
        route = great_circle(lat, lon, to_lat, to_lon)
        daylight.append(lit_minutes(route, takeoff.timestamp(), minutes))
        against = None if wind_from is None or wind_kt is None else headwind_of(route, wind_from, wind_kt)
        headwind.append(against)
    return pa.RecordBatch.from_arrays(
        [
            flights["flight"],
            pa.array(daylight, pa.int32()),
            pa.array(headwind, pa.int32()),
            pa.array([current_task().attempt] * len(daylight), pa.int32()),
        ],
        names=["flight", "lit_minutes", "headwind_kt", "attempt"],
    )


@lru_cache(maxsize=4096)
def great_circle(
    lat: float, lon: float, to_lat: float, to_lon: float
) -> tuple[float, list[tuple[float, float]]]:
    """Return the initial bearing, and points along the way as (latitude, longitude), all in radians."""
    a, b = vector(lat, lon), vector(to_lat, to_lon)
    angle = math.acos(max(-1.0, min(1.0, sum(x * y for x, y in zip(a, b, strict=True)))))
    points = []
    for step in range(POINTS):
        share = (step + 0.5) / POINTS
        p, q = (math.sin((1 - share) * angle), math.sin(share * angle)) if angle else (1.0, 0.0)
        x, y, z = (p * u + q * v for u, v in zip(a, b, strict=True))
        points.append((math.atan2(z, math.hypot(x, y)), math.atan2(y, x)))
    here, there, east = math.radians(lat), math.radians(to_lat), math.radians(to_lon - lon)
    bearing = math.atan2(
        math.sin(east) * math.cos(there),
        math.cos(here) * math.sin(there) - math.sin(here) * math.cos(there) * math.cos(east),
    )
    return bearing, points


def vector(lat: float, lon: float) -> tuple[float, float, float]:
    """Return a place on the unit sphere."""
    phi, lam = math.radians(lat), math.radians(lon)
    return math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)


def lit_minutes(route: tuple[float, list[tuple[float, float]]], takeoff: float, minutes: int) -> int:
    """Return the minutes of a flight on which the sun is up where the aircraft is, to 0.01 degrees."""
    lit = 0
    for step, (lat, lon) in enumerate(route[1]):
        days = (takeoff + 60 * minutes * (step + 0.5) / POINTS - J2000) / 86400
        anomaly = math.radians((357.528 + 0.9856003 * days) % 360)
        mean = (280.460 + 0.9856474 * days) % 360
        ecliptic = math.radians(mean + 1.915 * math.sin(anomaly) + 0.020 * math.sin(2 * anomaly))
        tilt = math.radians(23.439 - 0.0000004 * days)
        ascension = math.atan2(math.cos(tilt) * math.sin(ecliptic), math.cos(ecliptic))
        declination = math.asin(math.sin(tilt) * math.sin(ecliptic))
        sidereal = math.radians((280.46062 + 360.98564737 * days) % 360)
        hour = sidereal + lon - ascension
        height = math.sin(lat) * math.sin(declination) + math.cos(lat) * math.cos(declination) * math.cos(
            hour
        )
        lit += height > SUNRISE
    return round(lit * minutes / POINTS)


def headwind_of(route: tuple[float, list[tuple[float, float]]], wind_from: float, wind_kt: float) -> int:
    """Return the wind's part along the initial bearing, in knots; negative from behind."""
    return round(wind_kt * math.cos(math.radians(wind_from) - route[0]))


def signature(texts: pa.Array) -> pa.Array:
    """Return each text's MinHash: 64 numbers which two texts share as often as rows of words."""
    return pa.array([minhash(text or "") for text in texts.to_pylist()], pa.list_(pa.int64()))


def minhash(text: str) -> list[int]:
    """Return the least of each hash over all five tokens in a row."""
    words = WORD.findall(text)
    shingles = {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}
    codes = (
        np.fromiter((zlib.crc32(shingle.encode()) for shingle in shingles), np.uint64, len(shingles)) % PRIME
    )
    least = np.full(HASHES, PRIME, np.uint64)
    for part in np.array_split(codes, max(1, len(codes) // 4096)):
        least = np.minimum(least, ((part[:, None] * FACTORS + SHIFTS) % PRIME).min(axis=0))
    return [int(number) for number in least]
