"""A scope: of which queues and kinds of one namespace a reader sees jobs and events.

Pure. A scope is what an operator asks for, or what a token may see; the server decides the latter.
"""

import msgspec

from tenure.core.checks import check_name
from tenure.core.ids import Kind, Namespace, QueueName


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """`queues` and `kinds`: only of these, any if empty."""

    namespace: Namespace
    queues: tuple[QueueName, ...] = ()
    kinds: tuple[Kind, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that nothing can have: a database may fail on them. [J6]"""
        check_name("namespace", self.namespace)
        for queue in self.queues:
            check_name("queue", queue)
        for kind in self.kinds:
            check_name("kind", kind)

    def has(self, queue: str, kind: str) -> bool:
        """Whether jobs of this kind in this queue are in scope; the namespace is not looked at."""
        return self.has_queue(queue) and (not self.kinds or kind in self.kinds)

    def has_queue(self, queue: str) -> bool:
        """Whether jobs of this queue can be in scope."""
        return not self.queues or queue in self.queues
