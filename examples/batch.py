"""A batch: many small jobs sent at once, and one summary of how they ended.

Three hundred documents are measured. `enqueue_many` sends them in a few transactions instead of
three hundred. Every tenth meets a busy disk the first time and is tried again by itself; the three
that are empty can never succeed, fail for good and are listed at the end.

    tenure worker batch:app -c 8      # in this directory
    python batch.py                   # beside it
"""

import time
from collections import Counter

from tenure import Context, JobStatus, PermanentError, Retry, Tenure, TransientError

DOCUMENTS = 300
EMPTY = (50, 150, 250)

app = Tenure()


@app.job(queue="default", retry=Retry(max_attempts=3, initial="50ms", cap="200ms"))
def measure(ctx: Context, number: int, text: str) -> int:
    """How many words a document has."""
    if not text:
        raise PermanentError(f"document {number} is empty")
    if number % 10 == 1 and ctx.attempt == 1:
        raise TransientError("the disk is busy")
    return len(text.split())


def text_of(number: int) -> str:
    return "" if number in EMPTY else "word " * (number % 7 + 1)


def main() -> None:
    began = time.monotonic()
    jobs = app.enqueue_many(
        measure.call(number, text_of(number)) for number in range(1, DOCUMENTS + 1)
    )
    print(f"{len(jobs)} jobs enqueued in {time.monotonic() - began:.2f} s")

    ended = Counter(job.wait(timeout="10m") for job in jobs)
    words = sum(job.result() for job in jobs if job.status is JobStatus.SUCCEEDED)
    retried = sum(job.attempts > 1 for job in jobs)
    print(f"all ended after {time.monotonic() - began:.1f} s")
    for status, count in sorted(ended.items()):
        print(f"  {count:>4} {status}")
    print(f"  {retried:>4} needed another attempt")
    print(f"  {words:>4} words in total")
    for job in jobs:
        if job.status is not JobStatus.SUCCEEDED and job.error is not None:
            print(f"failed: {job.error.message}")


if __name__ == "__main__":
    main()
