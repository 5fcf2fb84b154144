"""A small part of SVG: elements, scales, axes. Knows neither runs nor reports.

Colours are classes (`f0` fills, `s0` strokes with the first colour), so that a page or a picture can have them light
or dark by its style sheet. The palette is Okabe and Ito's, which people with any colour vision can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

LIGHT_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b5bd2", "#7a7a7a"]
DARK_COLOURS = ["#4ba8e0", "#f0803c", "#2fc79a", "#e39cc4", "#f2b83b", "#8fd0f5", "#a79bf0", "#a5a5a5"]
DASHES = ["", "6 3", "2 3", "9 3 2 3", "4 2", "10 2 4 2", "12 4", "7 2 1 2 1 2"]
COLOUR_COUNT = len(LIGHT_COLOURS)


def style(scope: str = "") -> str:
    """The style sheet of all pictures, for light and dark."""
    return (
        f"{_rules(scope, LIGHT_COLOURS, ('#1d2329', '#5b6670', '#d9dee3', '#ffffff', '#c9ced4'))}"
        "@media (prefers-color-scheme: dark) {"
        f"{_rules(scope, DARK_COLOURS, ('#e6eaee', '#a3adb7', '#39424b', '#14181c', '#4a535c'))}}}"
        f"@media print {{{_rules(scope, LIGHT_COLOURS, ('#000000', '#444444', '#cccccc', '#ffffff', '#c9ced4'))}}}"
        f"{scope} text{{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}"
        f"{scope} .small{{font-size:11px}}{scope} .strong{{font-weight:600}}{scope} .line{{fill:none;stroke-width:1.8}}"
    )


def _rules(scope: str, colours: list[str], greys: tuple[str, str, str, str, str]) -> str:
    """The style sheet of a picture. `scope`: a selector for this picture; `greys`: ink, soft ink, grid, paper and
    idle."""
    ink, soft, grid, paper, idle = greys
    found = [f"{scope} .f{i}{{fill:{c}}}{scope} .s{i}{{stroke:{c}}}" for i, c in enumerate(colours)]
    found.append(f"{scope} text,{scope} .ink{{fill:{ink}}}{scope} .soft{{fill:{soft}}}")
    found.append(f"{scope} .grid{{stroke:{grid};stroke-width:1}}{scope} .axis{{stroke:{soft};stroke-width:1}}")
    found.append(
        f"{scope} .paper{{fill:{paper}}}{scope} .idle{{fill:{idle}}}{scope} .whisker{{stroke:{ink}}}"
        f"{scope} .mark{{stroke:{ink};stroke-width:.8;stroke-dasharray:3 2;opacity:.75}}"
    )
    return "".join(found)


@dataclass
class Canvas:
    """Collects elements; `svg()` is the picture."""

    width: float
    height: float
    label: str = ""
    origin: str = ""
    """Where the figures come from; kept inside the file."""
    parts: list[str] = field(default_factory=list)

    def add(self, name: str, content: str = "", **attributes: object) -> None:
        """An element; `content` is escaped, `title` becomes a tooltip."""
        title = attributes.pop("title", None)
        words = "".join(
            f" {key.rstrip('_').replace('_', '-')}={quoteattr(_number(value))}"
            for key, value in attributes.items()
            if value is not None
        )
        inside = (f"<title>{escape(str(title))}</title>" if title else "") + escape(content)
        self.parts.append(f"<{name}{words}>{inside}</{name}>" if inside else f"<{name}{words}/>")

    def text(self, x: float, y: float, content: str, anchor: str = "start", class_: str = "", **more: object) -> None:
        self.add("text", content, x=x, y=y, text_anchor=anchor, class_=class_ or None, **more)

    def svg(self, standalone: bool = False) -> str:
        """As part of a page, or as a file of its own with its own style sheet and background."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(self.width)} {_number(self.height)}" '
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"' if standalone else ""
        label = f' role="img" aria-label={quoteattr(self.label)}' if self.label else ""
        sheet = f"<style>{style()}</style>" if standalone else ""
        origin = f"<desc>{escape(self.origin)}</desc>" if self.origin else ""
        ground = '<rect class="paper" width="100%" height="100%"/>' if standalone else ""
        return f"{head}{size}{label}>{origin}{sheet}{ground}{''.join(self.parts)}</svg>"


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class AxisScale:
    """From values to places on the canvas."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (self.low, self.high, value)
        if self.log:
            low, high, at = math.log(self.low), math.log(self.high), math.log(max(value, self.low * 1e-3))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)

    def ticks(self, most: int = 6) -> list[float]:
        return log_ticks(self.low, self.high, most) if self.log else nice_ticks(self.low, self.high, most)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within the range, at most so many."""
    if not high > low:
        return [low]
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10, 20) if power * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) if step > 1e-9 else i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten, with 2 and 5 where these are few."""
    first, last = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**p for p in range(first, last + 1) for m in steps]
        found = [t for t in found if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(found) <= most:
            break
    return found[:: math.ceil(len(found) / most)] if len(found) > most else found or [low, high]


def short(value: float) -> str:
    """A number for an axis."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e5 or size < 1e-3:
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        if not exponent:
            mantissa, _, exponent = f"{value:.2e}".partition("e")
        digits = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{digits}e{int(exponent)}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.4g}"


def axes(
    canvas: Canvas,
    x: AxisScale,
    y: AxisScale,
    x_label: str,
    y_label: str,
    show_x: Callable[[float], str] = short,
    show_y: Callable[[float], str] = short,
    ticks: bool = True,
) -> None:
    """Grid, numbers and names of both axes; without `ticks` the lower one is left to the caller."""
    top, bottom, left, right = y.end, y.begin, x.begin, x.end
    for tick in y.ticks(5):
        at = y(tick)
        canvas.add("line", x1=left, x2=right, y1=at, y2=at, class_="grid")
        canvas.text(left - 6, at + 4, show_y(tick), "end", "soft small")
    for tick in x.ticks(max(3, int((right - left) / 80))) if ticks else ():
        at = x(tick)
        canvas.add("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis")
        canvas.text(at, bottom + 17, show_x(tick), "middle", "soft small")
    canvas.add("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
    canvas.text((left + right) / 2, bottom + 34, x_label, "middle", "small")
    canvas.text(left, top - 9, y_label, "start", "small")
