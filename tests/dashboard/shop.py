"""A shop's jobs: an hour in which everything happens that a dashboard shows.

Made by real requests in virtual time: successes, retries, late results, dead letters, cancels,
flows, schedules, silent and draining workers, a paused queue, a queue without a worker.
"""

import random
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from tenure.coordinator.retention import Folder
from tenure.coordinator.sweeper import Sweeper
from tenure.core.instants import Instant
from tenure.core.vocabulary import Role
from tests.dashboard.featured import plan_featured
from tests.server.harness import Stage
from tests.support.coordinators import VirtualClock

HOUR_S = 3600.0
STEP_S = 10.0
NEWSLETTER_AT_S = 2400.0


class ShopClock(VirtualClock):
    """Begins an hour ago and moves when told to, until it is the host's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Instant(time.time_ns() // 1000 - int(HOUR_S * 1e6))
        self.is_live = False

    def __call__(self) -> Instant:
        if self.is_live:
            self.now = max(self.now, Instant(time.time_ns() // 1000))
        return self.now


TRACEBACK = """Traceback (most recent call last):
  File "shop/payments.py", line 88, in charge_card
    charge = gateway.charge(order.card, order.total_cents)
  File "shop/gateway.py", line 41, in charge
    raise CardDeclined(answer["reason"])
shop.gateway.CardDeclined: insufficient funds
"""

# kind, queue, jobs per step, run time in seconds, how often it fails, its error
WORK: tuple[tuple[str, str, float, float, float, tuple[str, str]], ...] = (
    ("send-receipt", "mail", 3.0, 1.2, 0.02, ("SMTPServerDisconnected", "connection lost")),
    ("charge-card", "payments", 1.2, 2.5, 0.09, ("CardDeclined", "insufficient funds")),
    ("resize-image", "media", 2.4, 4.0, 0.03, ("UnidentifiedImageError", "not an image")),
    ("transcode-video", "media", 0.12, 95.0, 0.2, ("TimeoutError", "encoder took too long")),
    ("index-product", "search", 1.6, 0.3, 0.0, ("", "")),
)
WORKERS: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("mail-1", "app-1.example", ("mail",), 8),
    ("payments-1", "app-1.example", ("payments",), 4),
    ("payments-2", "app-2.example", ("payments",), 4),
    ("media-1", "gpu-1.example", ("media",), 6),
    ("media-2", "gpu-2.example", ("media",), 6),
    ("search-1", "app-2.example", ("search", "default"), 4),
)


class Shop:
    """Fills a stage. `seed` makes the same shop each time, but for the clock."""

    def __init__(self, stage: Stage, seed: int = 7) -> None:
        self.stage = stage
        self.clock = stage.clock
        self._random = random.Random(seed)
        self._numbers = count(1)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._now_s = 0.0
        self._sweeper = Sweeper(stage.coordinator, monotonic=stage.clock)
        self._folder = Folder(stage.store, monotonic=stage.clock)
        self._running: dict[str, int] = {}
        self._declined = ""  # the job whose card is never accepted

    def fill(self) -> None:
        """Let an hour pass."""
        self._settings()
        plan_featured(self, HOUR_S)
        # Every attempt of it fails. By chance alone, about one shop in five would have no dead
        # letter of this kind: the time of day, which the schedules follow, changes the draws.
        self._declined = self.enqueue("charge-card", "payments")
        while self._now_s < HOUR_S:
            if self._now_s == NEWSLETTER_AT_S:
                self._newsletter()
            self._demand()
            self._workers()
            self._pass(STEP_S)
        self._last_minutes()
        self._workers()

    # --- requests

    def ask(self, route: str, message: object = None, *, role: Role, **path: str) -> Any:
        """A request that must succeed."""
        answer = self.stage.call(route, message, role=role, **path)
        assert answer.status < 300, (route, answer)
        return answer.json

    def _id(self) -> str:
        at_ms = self.clock() // 1000
        return (
            f"{at_ms >> 16:08x}-{at_ms & 0xFFFF:04x}-7{self._random.getrandbits(12):03x}"
            f"-8{self._random.getrandbits(12):03x}-{self._random.getrandbits(48):012x}"
        )

    def enqueue(self, kind: str, queue: str, **fields: Any) -> str:
        """A job of the shop; its id."""
        job_id = self._id()
        order = next(self._numbers) + 4000
        job = {
            "job_id": job_id,
            "kind": kind,
            "queue": queue,
            "payload": {"order": order, "email": f"customer{order}@example.com"},
            "correlation_id": f"order-{order}",
            "policy": {"max_attempts": 4, "backoff": {"initial_s": 20.0, "cap_s": 120.0}},
            **fields,
        }
        self.ask("enqueue", job, role=Role.CLIENT)
        return job_id

    # --- an hour

    def _settings(self) -> None:
        ask = self.ask
        ask(
            "limit",
            {"limit": 8, "rate": "120/m", "burst": 40},
            role=Role.OPERATOR,
            queue="payments",
        )
        ask("limit", {"limit": 12}, role=Role.OPERATOR, queue="media")
        ask("set-kind", {"rate": "10/s", "burst": 50}, role=Role.OPERATOR, kind="send-receipt")
        for name, cron, kind in (
            ("nightly-report", "0 3 * * *", "build-report"),
            ("reindex-catalogue", "*/15 * * * *", "index-product"),
            ("sync-stock", "*/5 * * * *", "sync-stock"),
        ):
            spec = {"kind": kind, "queue": "search", "cron": cron, "tz": "Europe/Berlin"}
            ask("put-schedule", spec, role=Role.OPERATOR, schedule=name)
        ask("pause-schedule", role=Role.OPERATOR, schedule="nightly-report")

    def _demand(self) -> None:
        wave = 1.0 + 0.5 * (1.0 if 1500 < self._now_s < 2100 else 0.0)
        for kind, queue, each_step, *_ in WORK:
            expected = each_step * wave * (0.6 + 0.8 * self._random.random())
            number = int(expected) + (self._random.random() < expected % 1)
            for _ in range(number):
                self.enqueue(kind, queue)

    def _workers(self) -> None:
        for name, host, queues, slots in WORKERS:
            if name == "media-2" and self._now_s > 2900:
                continue  # its host has gone
            self._alive(name, host, queues, slots)
            free = slots - self._running.get(name, 0)
            if free <= 0:
                continue
            message = self.stage.claim_message(worker=name, queues=list(queues), limit=free)
            message["start"] = True
            for grant in self.ask("claim", message, role=Role.WORKER)["grants"]:
                self._begin(name, grant)

    def _alive(self, name: str, host: str, queues: tuple[str, ...], slots: int) -> None:
        sign = {
            "host": host,
            "pid": 4000 + len(name),
            "queues": list(queues),
            "concurrency": slots,
            "version": "0.1.0",
            "uptime_s": self._now_s + 60,
        }
        self.ask("alive", sign, role=Role.WORKER, worker=name)

    def _begin(self, worker: str, grant: dict[str, Any]) -> None:
        self._running[worker] = self._running.get(worker, 0) + 1
        kind = grant["kind"]
        known = {each[0]: each for each in WORK}
        _, _, _, takes_s, fails, error = known.get(kind, (kind, "", 0.0, 3.0, 0.0, ("", "")))
        takes_s *= 0.4 + 1.2 * self._random.random()
        has_failed = self._random.random() < fails + (0.25 if grant["attempt"] > 1 else 0.0)
        has_failed |= grant["job_id"] == self._declined
        lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
        if takes_s > 25:
            self._at(takes_s / 2, lambda: self._heartbeat(lease))
        self._at(takes_s, lambda: self._end(worker, lease, error if has_failed else None))

    def _heartbeat(self, lease: dict[str, str]) -> None:
        beat = {**lease, "hb_seq": 1, "progress": {"done": 48, "total": 100, "note": "pass 1"}}
        self.ask("heartbeat", {"leases": [beat]}, role=Role.WORKER)

    def _end(self, worker: str, lease: dict[str, str], error: tuple[str, str] | None) -> None:
        self._running[worker] -= 1
        if worker == "media-2" and self._now_s > 2900:
            return
        request_id = f"end-{next(self._numbers)}"
        if error is None or not error[0]:
            done = {**lease, "request_id": request_id, "result": {"ok": True}}
            self.ask("complete", done, role=Role.WORKER)
            return
        said = {"type": error[0], "message": error[1], "traceback": TRACEBACK}
        failed = {**lease, "request_id": request_id, "error": said}
        self.ask("fail", failed, role=Role.WORKER)

    def _at(self, in_s: float, do: Callable[[], None]) -> None:
        self.plan(self._now_s + in_s, do)

    def plan(self, at_s: float, do: Callable[[], None]) -> None:
        """Do it at this second of the hour."""
        self._due.append((at_s, next(self._numbers), do))

    def _pass(self, amount_s: float) -> None:
        end_s = self._now_s + amount_s
        while self._due and min(self._due)[0] <= end_s:
            first = min(self._due)
            self._due.remove(first)
            self._advance(max(0.0, first[0] - self._now_s))
            first[2]()
        self._advance(end_s - self._now_s)
        self._sweeper.sweep_once()
        self._folder.fold_once()

    def _advance(self, amount_s: float) -> None:
        self.clock.advance(amount_s)
        self._now_s += amount_s

    # --- what stands out at the end

    def _newsletter(self) -> None:
        self.ask("pause", role=Role.OPERATOR, queue="newsletter")
        for _ in range(30):
            self.enqueue("send-newsletter", "newsletter")

    def _last_minutes(self) -> None:
        for _ in range(6):
            self.enqueue("export-ledger", "legacy")
        for hours in (1, 5, 24):
            self.enqueue("send-reminder", "mail", delay_s=hours * 3600.0)
        cancelled = self.enqueue("transcode-video", "media")
        stop = {"request_id": "cancel-1", "reason": "the customer removed the video"}
        self.ask("cancel", stop, role=Role.OPERATOR, job_id=cancelled)
        self._flow()
        self.ask("drain", role=Role.OPERATOR, worker="search-1")

    def _flow(self) -> None:
        names = ("reserve-stock", "charge-card", "print-label", "send-receipt")
        ids = {name: self._id() for name in names}
        after: dict[str, tuple[str, ...]] = {
            "charge-card": ("reserve-stock",),
            "print-label": ("reserve-stock",),
            "send-receipt": ("charge-card", "print-label"),
        }
        jobs = [
            {
                "name": name,
                "job": {"job_id": ids[name], "kind": name, "queue": "payments"},
                "after": [{"job_id": ids[each], "name": each} for each in after.get(name, ())],
            }
            for name in names
        ]
        flow = {"flow_id": self._id(), "name": "order-5120", "jobs": jobs}
        self.ask("flow", flow, role=Role.CLIENT)
