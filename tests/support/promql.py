"""As much of PromQL as dashboards and alert rules use: which metrics, labels and functions.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/ and …/functions/. What this
parser does not know it refuses, so that an expression is never taken for checked when it was not.
"""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+(?:\.\d+)?)
    |(?P<word>[A-Za-z_:][\w:]*)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<range>\[(?:\d+[smhdwy]|\$__rate_interval)\])
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/(){},<>=])
    )""",
    re.VERBOSE,
)
AGGREGATIONS = frozenset({"sum", "max", "min", "avg", "count"})
FUNCTIONS = frozenset({"rate", "increase", "delta", "histogram_quantile"})
_OPERATORS = frozenset({"+", "-", "*", "/", "==", "!=", ">", "<", ">=", "<="})


class NotUnderstood(Exception):
    """The expression has something that this parser does not know."""


@dataclass(frozen=True)
class Use:
    """One metric in an expression: the functions around it, innermost first, the labels that
    aggregations around it keep, and its matchers."""

    metric: str
    is_range: bool
    functions: tuple[str, ...]
    grouped_by: tuple[tuple[str, ...], ...]
    matchers: dict[str, str] = field(hash=False)


def uses(expression: str) -> list[Use]:
    """Every metric that an expression uses. Raises `NotUnderstood`."""
    parser = _Parser(_tokens(expression))
    found = parser.expression()
    if parser.rest:
        raise NotUnderstood(f"{expression}: what is {parser.rest[0][1]!r}?")
    return found


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(expression.rstrip()):
        token = _TOKEN.match(expression, at)
        if token is None or token.lastgroup is None:
            raise NotUnderstood(expression[at:])
        found.append((token.lastgroup, token[token.lastgroup]))
        at = token.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.rest = tokens

    def expression(self) -> list[Use]:
        found = self._part()
        while self.rest and self.rest[0][1] in _OPERATORS:
            self._take()
            found += self._part()
        return found

    def _part(self) -> list[Use]:
        sort, text = self._take()
        if sort == "number":
            return []
        if text == "(":
            found = self.expression()
            self._take(")")
            return found
        if sort != "word":
            raise NotUnderstood(f"{text!r} begins nothing")
        if text in AGGREGATIONS:
            labels = self._labels() if self._is_next("by") else ()
            return [_around(use, text, labels) for use in self._arguments()]
        if text in FUNCTIONS:
            return [_around(use, text, None) for use in self._arguments()]
        if self._is_next("("):
            raise NotUnderstood(f"the function {text}")
        return [self._selector(text)]

    def _arguments(self) -> list[Use]:
        self._take("(")
        found = self.expression()
        while self._is_next(","):
            self._take()
            found += self.expression()
        self._take(")")
        return found

    def _labels(self) -> tuple[str, ...]:
        self._take("by")
        self._take("(")
        labels = [self._take()[1]]
        while self._is_next(","):
            self._take()
            labels.append(self._take()[1])
        self._take(")")
        return tuple(labels)

    def _selector(self, metric: str) -> Use:
        matchers: dict[str, str] = {}
        if self._is_next("{"):
            self._take()
            while not self._is_next("}"):
                label, sign, value = self._take()[1], self._take()[1], self._take()
                if sign not in ("=", "!=", "=~", "!~") or value[0] != "text":
                    raise NotUnderstood(f"{metric}{{{label}{sign}{value[1]}")
                matchers[label] = value[1][1:-1]
                if self._is_next(","):
                    self._take()
            self._take("}")
        is_range = bool(self.rest) and self.rest[0][0] == "range"
        if is_range:
            self._take()
        return Use(metric, is_range, (), (), matchers)

    def _is_next(self, text: str) -> bool:
        return bool(self.rest) and self.rest[0][1] == text

    def _take(self, expected: str | None = None) -> tuple[str, str]:
        if not self.rest or expected not in (None, self.rest[0][1]):
            raise NotUnderstood(f"{expected!r} is missing before {self.rest[:1]}")
        return self.rest.pop(0)


def _around(use: Use, function: str, labels: tuple[str, ...] | None) -> Use:
    grouped = use.grouped_by if labels is None else (*use.grouped_by, labels)
    return Use(use.metric, use.is_range, (*use.functions, function), grouped, use.matchers)
