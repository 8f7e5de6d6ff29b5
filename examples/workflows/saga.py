"""Saga: when a step fails, the steps before it are undone, the last one first."""

from taskmesh import Mesh, task


@task
def book(what: str) -> str:
    return {"flight": "LH 1", "hotel": "Ritz"}[what]  # there are no cars


@task
def undo(what: str) -> str:  # harmless where nothing was booked
    return f"{what} undone"


with Mesh(workers=2):
    flight = book.submit("flight")
    hotel = book.with_options(after=flight).submit("hotel")
    car = book.with_options(after=hotel).submit("car")
    no_hotel = undo.with_options(after=car, when="failure").submit("hotel")  # cancelled if all goes well
    no_flight = undo.with_options(after=no_hotel).submit("flight")
    print(no_hotel.result(timeout=30), no_flight.result(timeout=30), sep=", ")  # hotel undone, flight undone
