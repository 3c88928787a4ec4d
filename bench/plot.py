"""A bar chart as SVG in a few lines: medians as bars, the lowest and the highest round as a line through the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.figures import BARE, OURS, PGQUEUER, PROCRASTINATE, Figure

COLOURS = {BARE: "#8a8f98", OURS: "#1f6f54", PROCRASTINATE: "#b5651d", PGQUEUER: "#3b5b92"}

WIDTH = 840
_LABELS = 370
_BARS = 380
_ROW = 22
_HEAD = 34


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its title with the unit, and its bars from top to bottom, as (label, figure)."""

    title: str
    bars: Sequence[tuple[str, Figure]]


def svg(panels: Sequence[Panel]) -> str:
    """The panels below each other, each with a scale of its own that begins at 0."""
    parts, top = [], 10
    for panel in panels:
        parts += _panel(panel, top)
        top += _HEAD + _ROW * len(panel.bars) + 16
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>', *parts, "</svg>", ""])


def _panel(panel: Panel, top: int) -> list[str]:
    longest = max((figure.spread[1] for _, figure in panel.bars), default=1.0) or 1.0
    parts = [f'<text x="10" y="{top + 18}" font-size="14" font-weight="600" fill="#222">{escape(panel.title)}</text>']
    for row, (label, figure) in enumerate(panel.bars):
        y = top + _HEAD + row * _ROW
        low, high = (_LABELS + _BARS * value / longest for value in figure.spread)
        end = _BARS * figure.median / longest
        middle = y + 8
        parts += [
            f'<text x="{_LABELS - 8}" y="{y + 12}" text-anchor="end" fill="#222">{escape(label)}</text>',
            f'<rect x="{_LABELS}" y="{y}" width="{end:.1f}" height="16" fill="{COLOURS.get(figure.subject, "#555")}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {y + 4}v8M{high:.1f} {y + 4}v8" stroke="#222"/>',
            f'<text x="{max(high, _LABELS + end) + 6:.1f}" y="{y + 12}" fill="#222">{number(figure.median)}</text>',
        ]
    return parts


def number(value: float) -> str:
    """Three digits that mean something: 12,300; 845; 3.21."""
    if value >= 1000:
        return f"{round(value, -1 if value < 10_000 else -2):,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
