"""A port for Prometheus, for processes that are no server: one page, one caller at a time.

It answers GET /metrics and nothing else, to anybody who reaches it, so it listens on this machine
unless told otherwise. A caller that is slow is cut off; the next one waits no longer than that.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tenure.errors import TenureError
from tenure.telemetry.metrics import CONTENT_TYPE, MetricsAddress

CALLER_WITHIN_S = 5.0


@contextmanager
def exposed(address: MetricsAddress, text: Callable[[], bytes]) -> Iterator[int]:
    """Expose `text` while the block runs; what is yielded is the port."""
    server = _listen(address, text)
    thread = threading.Thread(target=server.serve_forever, name="tenure-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(address: MetricsAddress, text: Callable[[], bytes]) -> HTTPServer:
    class Page(BaseHTTPRequestHandler):
        """The one page."""

        timeout = CALLER_WITHIN_S
        server_version = "tenure"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "there is /metrics here and nothing else")
                return
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a scrape is no news."""

    try:
        return HTTPServer((address.host, address.port), Page)
    except OSError as failure:
        raise TenureError(
            f"cannot listen on {address.host} port {address.port}: {failure.strerror}",
            hint="choose another --metrics-port, or stop whoever has this one",
        ) from failure
