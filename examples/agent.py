"""An agent: a long job that saves what it has learnt, reports its progress, and stops when asked.

Each step is an expensive call (here it only sleeps). The agent saves a checkpoint after every
step, so an attempt that fails half-way is continued, not repeated: the first question meets an
overloaded model once, and no step of it is paid for twice. The second question is cancelled while
it runs, and the spending stops within about a second.

    tenure worker agent:app      # in this directory
    python agent.py              # beside it
"""

import time
from dataclasses import dataclass

from tenure import Context, JobCancelled, Retry, Tenure, TransientError

STEP_S = 0.3

app = Tenure()


@dataclass
class Answer:
    """What the agent found, and which attempt paid for each step."""

    text: str
    paid_in: list[int]


@app.job(timeout="2h", grace="10s", retry=Retry(max_attempts=3, initial="100ms"))
def research(ctx: Context, question: str, steps: int, overloaded_at: int = 0) -> Answer:
    """Answer a question in steps. `overloaded_at` is where the first attempt fails."""
    paid_in: list[int] = ctx.checkpoint or []  # what the last attempt saved
    for step in range(len(paid_in) + 1, steps + 1):
        ctx.check()  # raises Cancelled: asked to stop, or another worker has the job now
        if ctx.attempt == 1 and step == overloaded_at:
            raise TransientError("the model is overloaded")
        think(question, step)
        paid_in.append(ctx.attempt)
        ctx.save(paid_in)
        ctx.progress(step, steps, note=f"read source {step}")
    return Answer(f"{question} 42.", paid_in)


def think(question: str, step: int) -> None:
    """Where the money goes. Pass f"{job_id}:{step}" to a provider that takes idempotency keys."""
    time.sleep(STEP_S)


def main() -> None:
    first = research.enqueue("What is a lease?", steps=6, overloaded_at=4)
    answer = first.result(timeout="5m")
    print(f"answered in {first.attempts} attempts: {answer.text}")
    for step, attempt in enumerate(answer.paid_in, start=1):
        print(f"  step {step} was paid for in attempt {attempt}")

    second = research.enqueue("What is everything?", steps=1000)
    while (progress := second.progress) is None or progress.done < 3:
        time.sleep(0.1)
    print(f"step {progress.done} of {progress.total} ({progress.note}): that is enough")
    second.cancel(reason="too expensive")
    try:
        second.result(timeout="5m")
    except JobCancelled as ended:
        assert second.progress is not None
        print(f"{second.status} after {second.progress.done} steps: {ended.reason}")


if __name__ == "__main__":
    main()
