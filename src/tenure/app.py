"""`Tenure`: the application object, connected to the store or the server that its URL names."""

import logging
from typing import TYPE_CHECKING

from tenure.client.app import Application
from tenure.client.channel import Link, NoTransactions
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.own_transaction.jobs import OwnTransactions
from tenure.ports import Transactions
from tenure.settings import (
    DEFAULT_URL,
    checked_retry_for_s,
    is_new,
    is_server,
    limits_from_environment,
    shown_url,
    url_from_environment,
)
from tenure.telemetry.counts import Counts
from tenure.telemetry.metrics import Metrics, register
from tenure.wiring import open_link
from tenure.worker.supervisor.options import WITHHELD_URL

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger("tenure.app")


class Tenure(Application):
    """An application: decorate functions with `job`, enqueue them, read their jobs.

    Connects at the first call that needs it, to `url`, else to `TENURE_URL`, else to `tenure.db`
    in the working directory. `name` is who enqueued, as a job's history shows it; a server knows
    that from `token`, else from `TENURE_TOKEN`.

    A request that gets no answer is sent again under the same id for `retry_for`, else for
    `TENURE_RETRY_FOR`, else for `"60s"`; then the call raises `StoreUnavailable`. `"0s"` sends each
    request once.

    `metrics=True` shows what this process commits in prometheus_client's default registry, so that
    the application's own `/metrics` has it; another registry may be given instead. Behind a server
    nothing is counted here: the server counts it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        name: str = "app",
        token: str | None = None,
        retry_for: str | None = None,
        metrics: "bool | CollectorRegistry" = False,
    ) -> None:
        self._counts = None if metrics is False else Counts()
        if self._counts is not None and metrics is not False:
            register(Metrics(self._counts), metrics)
        self._url = url
        self._token = token
        self._retry_for_s = (
            None if retry_for is None else checked_retry_for_s("retry_for", retry_for)
        )
        super().__init__(lambda: self._open(self._chosen_url()), namespace=namespace, name=name)

    @property
    def own_url(self) -> str | None:
        """The URL that the application was given; None if it uses the environment's."""
        return self._url

    @property
    def own_token(self) -> str | None:
        """The token that the application was given: a secret that must not be shown."""
        return self._token

    def _open(self, url: str) -> Link:
        is_made = url == DEFAULT_URL and is_new(url)
        link = open_link(url, token=self._token, counts=self._counts, retry_for_s=self._retry_for_s)
        if is_made:
            # A worker that starts in another directory would use another file.
            _log.warning("no URL is set, so jobs go to a new file: %s", shown_url(url))
        return link

    def _chosen_url(self) -> str:
        return self._url or url_from_environment()

    def _transactions(self) -> Transactions:
        url = self._chosen_url()
        if is_server(url):
            return NoTransactions()  # without asking for a token that a handler does not have
        if url == WITHHELD_URL:
            # A worker withholds only URLs with a password, and those are PostgreSQL's.
            from tenure.own_transaction.postgres import unopened_store

            return OwnTransactions(unopened_store(), limits_from_environment())
        return super()._transactions()
