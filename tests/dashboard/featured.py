"""Jobs of the shop that pages show one by one, with ids that never change.

`HERO` failed, lost its worker, had the late result refused, and succeeded; `REPORT` runs with
progress and output; `EXPORT` was asked to stop; `IMPORT` is a flow with many equal jobs, half done.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from tenure.core.vocabulary import Role
from tests.server.harness import JOB, Stage

HERO = JOB.format(1)
REPORT = JOB.format(2)
EXPORT = JOB.format(3)
IMPORT = JOB.format(10)
PARSED_FILES = 24

TRACEBACK = """Traceback (most recent call last):
  File "shop/video.py", line 212, in render
    stream = cdn.open(video.source, timeout=10)
  File "shop/cdn.py", line 77, in open
    raise TimeoutError("cdn.example did not answer within 10 s")
TimeoutError: cdn.example did not answer within 10 s
"""


class Planner(Protocol):
    """The part of a shop that featured jobs need."""

    stage: Stage

    def plan(self, at_s: float, do: Callable[[], None]) -> None:
        """Do it at this second of the hour."""

    def ask(self, route: str, message: object = None, *, role: Role, **path: str) -> Any:
        """A request that must succeed."""


class Worker:
    """A worker of one queue, with the lease that it was granted last."""

    def __init__(self, shop: Planner, name: str, queue: str) -> None:
        self.shop, self.name, self.queue = shop, name, queue
        self.lease: dict[str, str] = {}
        self._numbers = count(1)

    def claim(self) -> None:
        """Claim the next job of the queue."""
        message = self.shop.stage.claim_message(worker=self.name, queues=[self.queue])
        [grant] = self.shop.ask("claim", message, role=Role.WORKER)["grants"]
        self.lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}

    def report(self, route: str, **fields: Any) -> None:
        """Start, complete or fail."""
        request_id = f"{self.name}-{route}-{self.lease['job_id']}-{next(self._numbers)}"
        self.shop.ask(route, {**self.lease, "request_id": request_id, **fields}, role=Role.WORKER)

    def renew(self, number: int, done: int, note: str, **fields: Any) -> None:
        """Report progress."""
        progress = {"done": done, "total": 100, "note": note}
        beat = {**self.lease, "hb_seq": number, "progress": progress, **fields}
        self.shop.ask("heartbeat", {"leases": [beat]}, role=Role.WORKER)

    def write(self, text: str, part: int = 0) -> None:
        """Send the output so far."""
        self.shop.ask("output", {**self.lease, "text": text, "part": part}, role=Role.WORKER)


def plan_featured(shop: Planner, end_s: float) -> None:
    """Plan all of them, so that they have got as far as they should by `end_s`."""
    _plan_hero(shop, end_s - 330)
    _plan_reports(shop, end_s - 95)
    _plan_import(shop, end_s - 200)
    _plan_dead_letters(shop, end_s)


def _plan_hero(shop: Planner, at_s: float) -> None:
    names = ("gpu-1", "gpu-2", "gpu-1")
    first, lost, last = (Worker(shop, name, "video") for name in names)
    job = {
        "job_id": HERO,
        "kind": "render-video",
        "queue": "video",
        "payload": {"video": 4711, "format": "1080p"},
        "correlation_id": "order-4711",
        "meta": {"tenant": "acme"},
        "policy": {
            "max_attempts": 5,
            "lease_s": 30.0,
            "backoff": {"initial_s": 10.0, "cap_s": 20.0},
        },
    }
    error = {
        "class": "transient",
        "type": "TimeoutError",
        "message": "cdn.example did not answer within 10 s",
        "traceback": TRACEBACK,
    }

    shop.plan(at_s, partial(shop.ask, "enqueue", job, role=Role.CLIENT))
    shop.plan(at_s + 4, first.claim)
    shop.plan(at_s + 5, partial(first.report, "start"))
    shop.plan(at_s + 16, partial(first.report, "fail", error=error))
    shop.plan(at_s + 80, lost.claim)
    shop.plan(at_s + 80.5, partial(lost.report, "start"))
    shop.plan(at_s + 91, partial(lost.renew, 1, 20, "decoding"))
    shop.plan(at_s + 160, last.claim)
    shop.plan(at_s + 160.4, partial(last.report, "start"))
    shop.plan(at_s + 174, partial(lost.report, "complete", result={"frames": 5400}))
    for number in range(1, 9):
        note = "decoding" if number < 3 else "encoding"
        extra = {"checkpoint": {"frame": 2700}} if number == 4 else {}
        beat = partial(last.renew, number, number * 12, note, **extra)
        shop.plan(at_s + 160 + 11 * number, beat)
    shop.plan(at_s + 250, partial(_leave_files, shop, last))
    result = {"frames": 5400, "megabytes": 82.4}
    shop.plan(at_s + 251, partial(last.report, "complete", result=result))


def _leave_files(shop: Planner, worker: Worker) -> None:
    frames = (f"frame {number:>4}: {number * 37 % 91 + 9} ms" for number in range(0, 5400, 450))
    worker.write("\n".join(["probe: h264, 3 min, 30 fps", *frames, "done"]) + "\n")
    put = shop.stage.caller(
        "PUT",
        f"/v1/jobs/{HERO}/artifacts/preview.html",
        token=shop.stage.of(Role.WORKER),
        headers={"tenure-lease": worker.lease["lease_id"], "content-type": "text/html"},
        pieces=[b"<script>document.title = 'it ran'</script>"],
    )
    assert shop.stage.run(put.run(shop.stage.app)).status == 200


def _plan_reports(shop: Planner, at_s: float) -> None:
    report, export = (Worker(shop, "batch-1", "reports") for _ in range(2))
    for job_id, kind, payload in (
        (REPORT, "build-report", {"month": "2026-10"}),
        (EXPORT, "export-orders", {"year": 2025}),
    ):
        job = {
            "job_id": job_id,
            "kind": kind,
            "queue": "reports",
            "payload": payload,
            "policy": {"lease_s": 120.0},
        }
        shop.plan(at_s, partial(shop.ask, "enqueue", job, role=Role.CLIENT))
    for worker in (report, export):
        shop.plan(at_s + 3, worker.claim)
        shop.plan(at_s + 3.5, partial(worker.report, "start"))
    lines = ""
    for number in range(1, 9):
        lines += f"region {number}: {1204 + number * 37} orders\n"
        shop.plan(at_s + 3 + 10 * number, partial(_progress, report, number, lines))
    stop = {"request_id": "stop-export", "reason": "the export of 2025 was sent already"}
    shop.plan(at_s + 70, partial(shop.ask, "cancel", stop, role=Role.OPERATOR, job_id=EXPORT))


def _progress(worker: Worker, number: int, lines: str) -> None:
    worker.renew(number, number * 11, f"region {number} of 9")
    worker.write(lines, number)


def _plan_dead_letters(shop: Planner, end_s: float) -> None:
    """Feeds that nobody can read: three errors, one of which came often and has stopped."""
    errors = (
        (40, 0.25, 0.55, "KeyError", "column 'price' is missing in feed {}"),
        (14, 0.05, 0.95, "HTTPError", "404 Not Found: /feeds/{}.csv"),
        (5, 0.70, 0.80, "UnicodeDecodeError", "'utf-8' codec can't decode byte 0xe4"),
    )
    for number, first, last, kind, message in errors:
        for at in range(number):
            worker = Worker(shop, "feeds-1", "feeds")
            share = first + (last - first) * at / number
            job = {"queue": "feeds", "kind": "import-feed", "policy": {"max_attempts": 1}}
            error = {"class": "transient", "type": kind, "message": message.format(at + 100)}
            shop.plan(end_s * share, partial(shop.ask, "enqueue", job, role=Role.CLIENT))
            shop.plan(end_s * share, worker.claim)
            shop.plan(end_s * share + 0.8, partial(worker.report, "fail", error=error))


def _plan_import(shop: Planner, at_s: float) -> None:
    """A flow: one download, many equal files, and what needs all of them."""
    steps: dict[str, tuple[str, tuple[str, ...]]] = {"download": ("download-feed", ())}
    files = tuple(f"file {number}" for number in range(1, PARSED_FILES + 1))
    steps |= dict.fromkeys(files, ("parse-file", ("download",)))
    steps |= {
        "prices": ("check-prices", files),
        "thumbnails": ("make-thumbnails", files),
        "index": ("index-catalogue", ("prices",)),
        "publish": ("publish-catalogue", ("index", "thumbnails")),
        "tell": ("send-summary", ("publish",)),
    }
    ids = {name: JOB.format(100 + number) for number, name in enumerate(steps)}
    jobs = [
        {
            "name": name,
            "job": {"job_id": ids[name], "kind": kind, "queue": "imports"},
            "after": [{"job_id": ids[each], "name": each} for each in after],
        }
        for name, (kind, after) in steps.items()
    ]
    flow = {"flow_id": IMPORT, "name": "import-catalogue", "jobs": jobs}
    shop.plan(at_s, partial(shop.ask, "flow", flow, role=Role.CLIENT))
    for number in range(PARSED_FILES - 2):
        worker = Worker(shop, "import-1", "imports")
        start_s = at_s + 5 + 7 * number
        shop.plan(start_s, worker.claim)
        shop.plan(start_s + 0.1, partial(worker.report, "start"))
        if number < PARSED_FILES - 5:
            shop.plan(start_s + 6, partial(worker.report, "complete"))
