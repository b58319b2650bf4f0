"""Book, then pay; a payment that fails gives the seat back.

`travel` books a seat and charges a card. When it ends badly after it has begun, however it ends
(failed, cancelled, out of attempts), Tenure enqueues `give_back` in the same transaction: there is
no moment in which the failure is recorded and the compensation could be forgotten.

    tenure worker compensation:app      # in this directory
    python compensation.py              # beside it
"""

import sqlite3
import time
from contextlib import closing

from tenure import Context, JobFailed, PermanentError, Tenure

FILE = "seats.db"
PATIENCE_S = 120

app = Tenure()


def seats(statement: str, *values: str) -> list[tuple[str, str]]:
    """The airline: another system, with a database of its own."""
    with closing(sqlite3.connect(FILE, timeout=30)) as airline, airline:
        airline.execute("CREATE TABLE IF NOT EXISTS seat (trip TEXT PRIMARY KEY, passenger TEXT)")
        return airline.execute(statement, values).fetchall()


@app.job
def give_back(job_id: str, kind: str, status: str, payload: dict[str, str]) -> None:
    """Undo what the job `job_id` may have done. It may never have booked: that is fine too."""
    seats("DELETE FROM seat WHERE trip = ?", job_id)


@app.job(compensate=give_back)
def travel(ctx: Context, passenger: str, card: str) -> str:
    """Both steps can be repeated: the job's id is the trip's."""
    seats("INSERT OR REPLACE INTO seat VALUES (?, ?)", ctx.job_id, passenger)
    charge(card)
    return f"{passenger} has a seat"


def charge(card: str) -> None:
    if card == "expired":
        raise PermanentError("the card was declined")


def booked() -> list[str]:
    return [passenger for _, passenger in seats("SELECT * FROM seat ORDER BY passenger")]


def main() -> None:
    ann = travel.enqueue("Ann", card="valid")
    bob = travel.enqueue("Bob", card="expired")
    print(ann.result(timeout=PATIENCE_S))
    try:
        bob.result(timeout=PATIENCE_S)
    except JobFailed as failed:
        print(f"Bob's trip {bob.status}: {failed.error_message}")
    give_up_at = time.monotonic() + PATIENCE_S
    while "Bob" in booked() and time.monotonic() < give_up_at:
        time.sleep(0.1)  # the compensation is a job like any other, and runs when its turn comes
    print(f"seats taken: {', '.join(booked())}")


if __name__ == "__main__":
    main()
