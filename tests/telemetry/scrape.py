"""What Prometheus would read: the text of an exposition, parsed by the library's own parser."""

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


def samples(text: bytes) -> dict[str, dict[Labels, float]]:
    """Samples by name and labels."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def total(text: bytes, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    wanted = set(labels.items())
    return sum(value for at, value in samples(text).get(name, {}).items() if wanted <= set(at))
