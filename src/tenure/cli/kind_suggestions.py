"""Which kind somebody may have meant who gave one that nobody knows."""

from tenure.core.ids import Namespace
from tenure.ports import Coordination
from tenure.telemetry.kind_names import meant_kind


def kind_suggestion(serving: Coordination, namespace: Namespace, kind: str) -> str:
    """` Did you mean charge?`, or nothing."""
    meant = meant_kind(serving.store, namespace, kind)
    return "" if meant is None else f" Did you mean {meant}?"
