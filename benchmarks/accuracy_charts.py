"""Charts of the accuracy benchmark as plain SVG: predicted against measured, and error by batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from accuracy_methods import Judged

from stepscope.core.score import quantile

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 36, 48
COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099")
BATCHES = (1, 8, 16, 32, 64, 128, 256, 2048)  # bounds of the classes of batch size


def predicted_against_measured(title: str, groups: Mapping[str, Sequence[Judged]]) -> str:
    """Each point once, milliseconds on logarithmic axes; the band is 15 % to either side."""
    times = [one.point.itl_seconds * 1e3 for judged in groups.values() for one in judged]
    low, high = math.log10(min(times) / 1.3), math.log10(max(times) * 1.3)
    x = _scale(low, high, LEFT, WIDTH - RIGHT)
    y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    ends = (10**low, 10**high)
    first, last = ends
    upper = [(x(first), y(first)), (x(first), y(first * 1.15)), (x(last / 1.15), y(last)), (x(last), y(last))]
    lower = [(x(last), y(last / 1.15)), (x(first * 1.15), y(first))]
    parts = [f'<polygon points="{_path(upper + lower)}" fill="#888888" fill-opacity="0.15"/>']
    parts += [_line(x(ends[0]), y(ends[0]), x(ends[1]), y(ends[1]), "#888888")]
    for tick in _decades(*ends):
        parts += [
            _text(x(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", "middle"),
            _text(LEFT - 8, y(tick) + 4, f"{tick:g}"),
        ]
        parts += [_line(x(tick), HEIGHT - BOTTOM, x(tick), TOP), _line(LEFT, y(tick), WIDTH - RIGHT, y(tick))]
    for colour, judged in zip(COLOURS, groups.values(), strict=False):
        for one in judged:
            measured = one.point.itl_seconds * 1e3
            predicted = min(max(measured * (1.0 + one.error), ends[0]), ends[1])
            parts.append(
                f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2.2" fill="{colour}" fill-opacity="0.55"/>'
            )
    parts += [
        _text(WIDTH / 2, HEIGHT - 10, "measured, ms", "middle"),
        _upright("predicted, ms"),
        *_legend(list(groups)),
    ]
    return _svg(title, parts)


def error_by_batch(title: str, methods: Mapping[str, Sequence[Judged]]) -> str:
    """Median size of the error for each class of batch size, one line per method; above 100 % is drawn at 100 %."""
    classes = list(itertools.pairwise(BATCHES))
    x = _scale(0.0, len(classes) - 1.0, LEFT + 24, WIDTH - RIGHT - 24, logarithmic=False)
    y = _scale(0.0, 2.0, HEIGHT - BOTTOM, TOP)  # 1 % to 100 %
    parts = []
    for tick in (1, 2, 5, 10, 20, 50, 100):
        parts += [_line(LEFT, y(tick), WIDTH - RIGHT, y(tick)), _text(LEFT - 8, y(tick) + 4, f"{tick} %")]
    for place, (first, last) in enumerate(classes):
        parts.append(_text(x(place), HEIGHT - BOTTOM + 18, f"{first}-{last - 1}", "middle"))
    for colour, judged in zip(COLOURS, methods.values(), strict=False):
        line = []
        for place, (first, last) in enumerate(classes):
            sizes = [abs(one.error) for one in judged if first <= one.point.sequences < last]
            if sizes:
                line.append((x(place), y(min(max(quantile(sizes, 0.5) * 100.0, 1.0), 100.0))))
        parts.append(f'<polyline points="{_path(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in line]
    parts += [_text(WIDTH / 2, HEIGHT - 10, "sequences in the step", "middle"), _upright("median size of the error")]
    return _svg(title, parts + _legend(list(methods), TOP + 66))  # below the highest line


def _scale(low: float, high: float, start: float, end: float, logarithmic: bool = True) -> Callable[[float], float]:
    def place(value: float) -> float:
        at = math.log10(value) if logarithmic else value
        return start + (at - low) / (high - low) * (end - start)

    return place


def _decades(low: float, high: float) -> list[float]:
    ticks = [step * 10.0**power for power in range(-1, 5) for step in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#dddddd") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "end") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _upright(text: str) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{text}</text>'


def _legend(names: Sequence[str], top: int = TOP) -> list[str]:
    parts = []
    for place, (colour, name) in enumerate(zip(COLOURS, names, strict=False)):
        at = top + 14 + 17 * place
        parts += [f'<rect x="{LEFT + 10}" y="{at - 9}" width="10" height="10" fill="{colour}"/>']
        parts += [_text(LEFT + 26, at, name, "start")]
    return parts


def _svg(title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{title}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
    )
    return head + _text(WIDTH / 2, 20, title, "middle") + "\n" + "\n".join(parts) + "\n</svg>\n"
