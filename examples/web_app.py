"""A web shop whose orders and jobs are committed together, or not at all.

An order is a row in the shop's own SQLite file and a job that confirms it. Both are written in one
transaction, on the shop's own connection: an order that is accepted will be confirmed, even if this
process dies at once, and an order whose card is declined leaves neither a row nor a job behind.

    tenure worker web_app:app --url sqlite:///shop.db      # in this directory
    python web_app.py 8000                                 # beside it
    curl -d '{"item": "pen", "cents": 250}' localhost:8000/orders         # 201, confirmed soon
    curl -d '{"item": "yacht", "cents": 99000000}' localhost:8000/orders  # 402, nothing remains
    curl localhost:8000/orders
"""

import json
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING
from wsgiref.simple_server import make_server

from tenure import Tenure

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

FILE = "shop.db"
CARD_LIMIT_CENTS = 100_000
app = Tenure(f"sqlite:///{FILE}")


def open_shop() -> sqlite3.Connection:
    shop = sqlite3.connect(FILE, timeout=30)
    shop.execute("PRAGMA wal_autocheckpoint = 0")  # Tenure checkpoints, safely with any SQLite
    return shop


@app.job
def confirm(order_id: int) -> str:
    """Run by the worker: it may run twice, and confirming twice is harmless."""
    with closing(open_shop()) as shop, shop:
        shop.execute("UPDATE orders SET status = 'confirmed' WHERE id = ?", (order_id,))
    return f"order {order_id} confirmed"


class CardDeclined(Exception): ...


def place_order(shop: sqlite3.Connection, item: str, cents: int) -> dict[str, object]:
    """The order and its job, in the one transaction that `with shop` commits or rolls back."""
    with shop:
        row = shop.execute("INSERT INTO orders (item, cents) VALUES (?, ?)", (item, cents))
        assert row.lastrowid is not None
        job = confirm.using(connection=shop).enqueue(row.lastrowid)
        if cents > CARD_LIMIT_CENTS:
            raise CardDeclined  # after both were written: the rollback takes both
    return {"order": row.lastrowid, "job": job.id}


def list_orders(shop: sqlite3.Connection) -> list[dict[str, object]]:
    rows = shop.execute("SELECT id, item, status FROM orders ORDER BY id")
    return [{"order": order, "item": item, "status": status} for order, item, status in rows]


def web(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """`POST /orders` places one, everything else lists them."""
    with closing(open_shop()) as shop:
        status, answer = "200 OK", object()
        if environ["REQUEST_METHOD"] == "POST":
            order = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            try:
                status, answer = "201 Created", place_order(shop, order["item"], order["cents"])
            except CardDeclined:
                status, answer = "402 Payment Required", {"error": "card declined"}
        else:
            answer = list_orders(shop)
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(answer).encode() + b"\n"]


if __name__ == "__main__":
    app.queues.ls()  # the first use of a new file sets up Tenure's tables in it
    with closing(open_shop()) as database, database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS orders "
            "(id INTEGER PRIMARY KEY, item TEXT, cents INTEGER, status TEXT DEFAULT 'placed')"
        )
    with make_server("127.0.0.1", int(sys.argv[1]), web) as server:
        print(f"http://127.0.0.1:{server.server_port}/orders", flush=True)
        server.serve_forever()
