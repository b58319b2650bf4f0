"""An application with schedules, for tests."""

from pathlib import Path

from tenure import Context, Tenure

app = Tenure()


@app.job(every="1s", overlap="allow", catch_up="all")
def tick(ctx: Context) -> str:
    """Says for which time it ran."""
    assert ctx.scheduled_for is not None
    return ctx.scheduled_for.isoformat()


@app.job
def note(path: str, text: str) -> None:
    """Appends a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


app.schedule("yearly", note.call("/dev/null", "x"), cron="0 0 1 1 *", tz="Europe/Berlin")
