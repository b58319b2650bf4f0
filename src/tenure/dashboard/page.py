"""What a page is: an entry of the dashboard's own table of paths."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from tenure.dashboard.visits import Visit

Answer = Callable[["Visit"], Awaitable[Response]]
"""What answers the visits of one page."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One path and method. A page that is in the menu has a `menu` word, an `icon`, a `key` (the
    letter that leads to it after `g`) and, in `asks`, the route of `/v1` that it shows: the menu
    has the page for those who may use this route."""

    name: str
    path: str
    answer: Answer
    method: str = "GET"
    is_public: bool = False
    """Whether it is shown to visitors who have not signed in."""
    menu: str = ""
    icon: str = ""
    key: str = ""
    asks: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether visitors with equal rights who ask for its changing part share it: several people
        look at the pages of the menu at a time. [DB15]"""
        return bool(self.menu)
