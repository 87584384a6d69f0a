"""A plan as a picture: speed and tokens in flight over concurrency, with the promise and the budgets. Plain SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 760, 240, 80, 20, 34, 60  # pixels
_BLUE, _RED, _GREY, _AREA = "#1f5fa8", "#b3261e", "#666666", "#c9dcf2"

Point = tuple[float, float]


def escape(text: str) -> str:
    """Text fit for an element of XML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def nice_top(value: float) -> float:
    """The next of 1, 2, 2.5, 3, 4, 5 x a power of ten: an axis that ends on a round number."""
    if value <= 0.0:
        return 1.0
    power = 1.0
    while power * 10.0 <= value:
        power *= 10.0
    while power > value:
        power /= 10.0
    return next(step * power for step in (1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0) if step * power >= value * (1.0 - 1e-9))


class Panel:
    """One set of axes; collects SVG elements. x and y are linear from 0."""

    def __init__(self, title: str, top: float, most_x: float, most_y: float, x_name: str) -> None:
        self._top, self._x, self._y = top, nice_top(most_x), nice_top(most_y)
        bottom = top + PANEL
        self.parts = [
            f'<text x="{LEFT}" y="{top - 10:.0f}" font-weight="bold">{escape(title)}</text>',
            f'<rect x="{LEFT}" y="{top:.0f}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" fill="none" '
            f'stroke="{_GREY}"/>',
        ]
        for i in range(6):
            x, y = self.at((self._x * i / 5, self._y * i / 5))
            self.parts += [
                f'<text x="{x:.1f}" y="{bottom + 16:.0f}" text-anchor="middle">{self._x * i / 5:,g}</text>',
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{self._y * i / 5:,g}</text>',
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3e3"/>',
            ]
        self.parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 32:.0f}" text-anchor="end">{escape(x_name)}</text>')

    def at(self, point: Point) -> Point:
        """Pixels of a point, inside the panel."""
        x = LEFT + (WIDTH - LEFT - RIGHT) * min(point[0] / self._x, 1.0)
        return x, self._top + PANEL * (1.0 - min(max(point[1] / self._y, 0.0), 1.0))

    def line(self, points: Sequence[Point], color: str = _BLUE, *, dash: bool = False, dots: bool = True) -> None:
        """A curve."""
        pixels = [self.at(point) for point in points]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        style = ' stroke-dasharray="6 4"' if dash else ""
        self.parts.append(f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="2"{style}/>')
        if dots:
            self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in pixels]

    def area(self, upper: Sequence[Point], lower: Sequence[Point]) -> None:
        """The band between two curves."""
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.at, [*upper, *reversed(lower)]))
        self.parts.append(f'<polygon points="{text}" fill="{_AREA}" stroke="none"/>')

    def mark_y(self, value: float, text: str, color: str = _RED) -> None:
        """A labelled horizontal line."""
        self.line([(0.0, value), (self._x, value)], color, dash=True, dots=False)
        _, y = self.at((0.0, value))
        label = f'<text x="{WIDTH - RIGHT - 6}" y="{y - 5:.1f}" text-anchor="end" fill="{color}">{escape(text)}</text>'
        self.parts.append(label)

    def mark_x(self, value: float, text: str, color: str = _GREY) -> None:
        """A labelled vertical line."""
        self.line([(value, 0.0), (value, self._y)], color, dash=True, dots=False)
        x, _ = self.at((value, 0.0))
        self.parts.append(f'<text x="{x + 5:.1f}" y="{self._top + 14:.0f}" fill="{color}">{escape(text)}</text>')


def svg(panels: Sequence[Panel], title: str) -> str:
    """A whole document of panels below one another."""
    height = TOP + len(panels) * (PANEL + GAP)
    body = "\n".join(part for panel in panels for part in panel.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def panel_top(index: int) -> float:
    """Where the n-th panel begins."""
    return TOP + index * (PANEL + GAP)


def draw(report: Mapping[str, Any]) -> str:
    """Speed per user (with its low and high), and tokens in flight against the budgets, over concurrency."""
    rows = [row for row in report["concurrency"] if row["itl_seconds"]]
    objective = report["demand"]["objective_tokens_per_second"]
    speeds = [(row["requests"], row["tokens_per_second_per_user"]) for row in rows]
    fast = [(row["requests"], row["tokens_per_second_per_user_high"]) for row in rows]
    slow = [(row["requests"], row["tokens_per_second_per_user_low"]) for row in rows]
    most = max((x for x, _ in speeds), default=1.0)
    top = max([objective or 0.0, *(y for _, y in fast)])
    speed = Panel("tokens/s each user sees", panel_top(0), most, top, "requests at once")
    speed.area(fast, slow)
    speed.line(speeds)
    if objective:
        speed.mark_y(objective, f"promised {objective:g}")
    if report["requests"] is not None and report["requests"] <= most:
        speed.mark_x(report["requests"], f"{report['binding']} limit")
    tokens = [(row["requests"], row["tokens_in_flight"]) for row in rows]
    budgets = {name: limit["tokens"] for name, limit in report["limits"].items() if limit.get("tokens") is not None}
    highest = max([1.0, *(y for _, y in tokens), *budgets.values()])
    flight = Panel("context tokens in flight", panel_top(1), most, highest, "requests at once")
    flight.line(tokens)
    for name, value in budgets.items():
        flight.mark_y(value, f"{name} budget {value:,.0f}")
    return svg([speed, flight], "Speed and token budget over concurrency")
