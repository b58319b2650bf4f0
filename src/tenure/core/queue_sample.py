"""Chooses which queues are measured when there are too many. Pure."""

from collections.abc import Iterable

import msgspec

from tenure.core.ids import Namespace, QueueName


class KnownQueue(msgspec.Struct, frozen=True, order=True):
    """A queue that could be measured. Their order is the one in which they are shown."""

    is_empty: bool
    namespace: Namespace
    queue: QueueName


def fair_share(queues: Iterable[KnownQueue], most: int) -> list[KnownQueue]:
    """At most `most` queues: those with jobs before empty ones, and one of each namespace in turn,
    so that a namespace with many queues leaves room for others. [B27]"""
    places: dict[tuple[bool, Namespace], int] = {}
    in_turn: list[tuple[bool, int, KnownQueue]] = []
    for queue in sorted(queues):
        place = places.setdefault((queue.is_empty, queue.namespace), 0)
        places[queue.is_empty, queue.namespace] = place + 1
        in_turn.append((queue.is_empty, place, queue))
    return sorted(queue for _, _, queue in sorted(in_turn)[:most])
