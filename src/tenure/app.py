"""`Tenure`: the application object, connected to the store or the server that its URL names."""

import logging
from typing import TYPE_CHECKING, Any

from tenure.client.app import Application
from tenure.client.channel import AsyncScope, Link, Scope, no_async_scope, no_scope
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.own_transaction.jobs import atransaction_on, transaction_on
from tenure.ports import Store
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
        self.counts = Counts()
        if metrics is not False:
            register(Metrics(self.counts), metrics)
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
        link = open_link(url, token=self._token, counts=self.counts, retry_for_s=self._retry_for_s)
        if is_made:
            # A worker that starts in another directory would use another file.
            _log.warning("no URL is set, so jobs go to a new file: %s", shown_url(url))
        return link

    def _chosen_url(self) -> str:
        return self._url or url_from_environment()

    def transaction_on(self, connection: Any) -> Scope:
        """A transaction on a connection to this application's database; see `ctx.transaction`."""
        if is_server(self._chosen_url()):
            return no_scope(connection)  # without asking for a token that a handler does not have
        if self._chosen_url() == WITHHELD_URL:
            return transaction_on(_unopened_store(), limits_from_environment(), connection)
        return super().transaction_on(connection)

    def atransaction_on(self, connection: Any) -> AsyncScope:
        """The same on an asynchronous connection."""
        if is_server(self._chosen_url()):
            return no_async_scope(connection)
        if self._chosen_url() == WITHHELD_URL:
            return atransaction_on(_unopened_store(), limits_from_environment(), connection)
        return super().atransaction_on(connection)


def _unopened_store() -> Store:
    """A worker withholds only URLs with a password, and those are PostgreSQL's."""
    from tenure.own_transaction.postgres import unopened_store

    return unopened_store()
