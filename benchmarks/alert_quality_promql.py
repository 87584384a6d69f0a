"""As much of PromQL as the shipped alert rules need, evaluated on one engine's series held in memory.

What is not known here raises ValueError, so that no rule is judged by a guess. increase() and rate() take last minus
first sample of the range; Prometheus extrapolates by less than a sample beyond.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Node = Callable[["Store", float], "Vector | float"]

_TOKEN = re.compile(
    r'\s*(?:(\d+(?:\.\d+)?)(?![\w.])|([A-Za-z_:][\w:]*)|("[^"]*")|(\[\w+\])|(=~|!~|!=|==|>=|<=|[-+*/<>(){},=]))'
)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_OVER_TIME: dict[str, Callable[[list[float]], float]] = {
    "avg_over_time": lambda values: sum(values) / len(values),
    "min_over_time": min,
    "max_over_time": max,
    "last_over_time": lambda values: values[-1],
    "count_over_time": lambda values: float(len(values)),
}
_RANGED = {"increase", "rate", *_OVER_TIME}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else float("nan"),  # x/0 is infinite in PromQL; rules guard against both
}
_LEVELS = (("or",), ("and", "unless"), tuple(_COMPARE), ("+", "-"), ("*", "/"))


class Store:
    """Series by name and labels, each a list of times and values that only grows. Times in seconds."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, tuple[list[float], list[float]]]] = {}

    def add(self, name: str, labels: Iterable[tuple[str, str]], at_seconds: float, value: float) -> None:
        """One more sample."""
        times, values = self._series.setdefault(name, {}).setdefault(frozenset(labels), ([], []))
        times.append(at_seconds)
        values.append(value)

    def ranges(self, name: str, end: float, length: float) -> Iterable[tuple[Labels, list[float]]]:
        """(labels, samples) of each series that has any in (end - length, end]."""
        for labels, (times, values) in self._series.get(name, {}).items():
            found = values[bisect_left(times, end - length) : bisect_right(times, end)]
            if found:
                yield labels, found


@dataclass(frozen=True, slots=True)
class _Matching:
    """Which labels two vectors are matched by."""

    on: frozenset[str] | None = None
    ignoring: frozenset[str] = frozenset()

    def key(self, labels: Labels) -> Labels:
        if self.on is not None:
            return frozenset(pair for pair in labels if pair[0] in self.on)
        return frozenset(pair for pair in labels if pair[0] not in self.ignoring) if self.ignoring else labels


def compiled(expression: str) -> Callable[[Store, float], Vector]:
    """The expression as a function of store and time. Raises ValueError for what is not known here."""
    tokens: list[str] = []
    at, text = 0, expression.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"not understood: {text[at : at + 40]!r}")
        tokens.append(found[0].strip())
        at = found.end()
    parser = _Parser(tokens)
    node = parser.binary(0)
    if parser.peek():
        raise ValueError(f"not understood: {parser.peek()!r}")

    def vector(store: Store, end: float) -> Vector:
        value = node(store, end)
        if isinstance(value, float):
            raise ValueError("the expression is a number")
        return value

    return vector


class _Parser:
    """Recursive descent over tokens; the levels of precedence are those of PromQL."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise ValueError(f"expected {wanted or 'more'!r}, got {token!r}")
        self._at += 1
        return token

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._primary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator, matching = self.take(), self._matching()
            left = _combined(operator, left, self.binary(level + 1), matching)
        return left

    def _matching(self) -> _Matching:
        if self.peek() not in ("on", "ignoring"):
            return _Matching()
        kind, names = self.take(), self._names()
        if self.peek() in ("group_left", "group_right"):
            raise ValueError("group_left and group_right are not known here")
        return _Matching(on=names) if kind == "on" else _Matching(ignoring=names)

    def _names(self) -> frozenset[str]:
        self.take("(")
        names = set()
        while self.peek() != ")":
            token = self.take()
            if token != ",":
                names.add(token)
        self.take(")")
        return frozenset(names)

    def _primary(self) -> Node:
        token = self.take()
        if token == "(":
            inner = self.binary(0)
            self.take(")")
            return inner
        if token == "-":
            number = float(self.take())
            return lambda _store, _end: -number
        if token[0].isdigit():
            number = float(token)
            return lambda _store, _end: number
        if token == "sum":
            self.take("without")
            matching = _Matching(ignoring=self._names())
            self.take("(")
            inner = self.binary(0)
            self.take(")")
            return lambda store, end: _summed(inner(store, end), matching)
        if token not in _RANGED:
            raise ValueError(f"{token!r} is not known here")
        self.take("(")
        name, wanted = self.take(), self._selector()
        length = self.take()
        self.take(")")
        seconds = float(length[1:-2]) * _SECONDS[length[-2]]
        return lambda store, end: _over(token, store.ranges(name, end, seconds), wanted, seconds)

    def _selector(self) -> tuple[tuple[str, str, str], ...]:
        if self.peek() != "{":
            return ()
        self.take("{")
        wanted = []
        while self.peek() != "}":
            name, operator, value = self.take(), self.take(), self.take().strip('"')
            wanted.append((name, operator, value))
            if self.peek() == ",":
                self.take()
        self.take("}")
        return tuple(wanted)


def _over(
    function: str,
    ranges: Iterable[tuple[Labels, list[float]]],
    wanted: tuple[tuple[str, str, str], ...],
    seconds: float,
) -> Vector:
    found: Vector = {}
    for labels, values in ranges:
        if not all(_fits(dict(labels).get(name, ""), operator, value) for name, operator, value in wanted):
            continue
        if function in ("increase", "rate"):
            if len(values) >= 2:
                found[labels] = (values[-1] - values[0]) / (seconds if function == "rate" else 1.0)
        else:
            found[labels] = _OVER_TIME[function](values)
    return found


def _fits(value: str, operator: str, wanted: str) -> bool:
    if operator in ("=", "!="):
        return (value == wanted) is (operator == "=")
    return (re.fullmatch(wanted, value) is not None) is (operator == "=~")


def _summed(value: Vector | float, matching: _Matching) -> Vector:
    if isinstance(value, float):
        raise ValueError("sum of a number")
    total: Vector = {}
    for labels, number in value.items():
        key = matching.key(labels)
        total[key] = total.get(key, 0.0) + number
    return total


def _combined(operator: str, left: Node, right: Node, matching: _Matching) -> Node:
    def node(store: Store, end: float) -> Vector | float:
        one, other = left(store, end), right(store, end)
        if isinstance(other, float):
            if isinstance(one, float):
                return _ARITHMETIC[operator](one, other)
            return _with_number(operator, one, other)
        if isinstance(one, float):
            raise ValueError("a number before an operator is not known here")
        return _with_vector(operator, one, other, matching)

    return node


def _with_number(operator: str, one: Vector, number: float) -> Vector:
    if operator in _COMPARE:
        return {labels: value for labels, value in one.items() if _COMPARE[operator](value, number)}
    return {labels: _ARITHMETIC[operator](value, number) for labels, value in one.items()}


def _with_vector(operator: str, one: Vector, other: Vector, matching: _Matching) -> Vector:
    matches = {matching.key(labels): value for labels, value in other.items()}
    if operator == "or":
        return one | {labels: v for labels, v in other.items() if matching.key(labels) not in map(matching.key, one)}
    if operator in ("and", "unless"):
        return {labels: v for labels, v in one.items() if (matching.key(labels) in matches) is (operator == "and")}
    found: Vector = {}
    for labels, value in one.items():
        key = matching.key(labels)
        if key in matches and operator in _COMPARE and _COMPARE[operator](value, matches[key]):
            found[labels] = value
        elif key in matches and operator in _ARITHMETIC:
            found[key] = _ARITHMETIC[operator](value, matches[key])
    return found
