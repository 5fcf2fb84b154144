"""The page around the figures: one HTML file with its style inside, for screens of any width and for paper.

Never refers to anything outside the file: no script, font, image or style sheet is loaded from anywhere. What it
writes is well-formed XML too, so that a test can read it with a strict parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape

from flegel.report.svg import Canvas, style

WIDE_PIXELS, NARROW_PIXELS = 760.0, 348.0  # widths of pictures, alone and two in a line

STYLE_SHEET = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d2329;--soft:#5b6670;--rule:#d9dee3;--tint:#f4f6f8;--link:#005a8d}
@media (prefers-color-scheme:dark){:root{--paper:#14181c;--ink:#e6eaee;--soft:#a3adb7;--rule:#39424b;--tint:#1d2329;
--link:#6bbcf0}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:66rem;background:var(--paper);color:var(--ink);line-height:1.5;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.4em 0}h2{font-size:1.3rem;margin:2.2em 0 .4em;padding-top:.6em;
border-top:1px solid var(--rule)}h3{font-size:1.05rem;margin:1.8em 0 .3em}
p{margin:.5em 0;max-width:46rem}.lead{font-size:1.1rem}.soft{color:var(--soft)}a{color:var(--link)}
.scroll{overflow-x:auto;margin:.6em 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.32em .6em;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
td.word,th.word{text-align:left}td.word{white-space:normal}td.word:last-child{min-width:14em}tr.best td{font-weight:600}
figure{margin:.8em 0 1.4em;max-width:54rem}
figure svg{display:block;width:100%;height:auto}figcaption{font-size:.9rem;color:var(--soft)}
.narrow{display:none}details{margin:.6em 0}summary{cursor:pointer;color:var(--link)}
.note{border-left:4px solid #e69f00;padding:.3em .8em;background:var(--tint);max-width:46rem;margin:.6em 0}
nav ul{columns:2;padding-left:1.2em}dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}code{font-size:.88em;overflow-wrap:anywhere}
@media (max-width:34rem){body{padding:.8rem}.wide{display:none}.narrow{display:block}nav ul{columns:1}
table{font-size:.85rem}th:first-child,td:first-child{white-space:normal;max-width:9em}dl{grid-template-columns:1fr}dd{margin-bottom:.4em}}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--rule:#bbb;--tint:#f4f4f4}body{max-width:none;padding:0;
font-size:11pt}figure,tr{break-inside:avoid}h2,h3{break-after:avoid}.scroll{overflow:visible}table{font-size:8pt}
.wide{display:block}.narrow{display:none}nav{display:none}}
"""


def page(title: str, body: Iterable[str], contents: Sequence[tuple[str, str]] = ()) -> str:
    """The whole file. `contents` are (anchor, name) of its sections, listed where there are several."""
    listed = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name in contents)
    nav = f"<nav><ul>{listed}</ul></nav>" if len(contents) > 1 else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{escape(STYLE_SHEET)}{escape(style('svg'))}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{nav}{''.join(body)}</main></body></html>\n"
    )


def figure(draw: Callable[[float], Canvas], caption: str = "") -> str:
    """A chart drawn twice, for wide and for narrow screens, so that its text stays legible on phones."""
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div class="wide">{draw(WIDE_PIXELS).svg()}</div>'
        f'<div class="narrow">{draw(NARROW_PIXELS).svg()}</div>{words}</figure>'
    )


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], best: Iterable[int] = (), words: Iterable[int] = ()
) -> str:
    """Figures to the right; columns in `words` and the first to the left; rows in `best` in bold."""
    strong, left = set(best), set(words)

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} class="word">{escape(cell)}</{tag}>' if i in left else f"<{tag}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    body = "".join(
        f'<tr class="best">{line(row, "td")}</tr>' if i in strong else f"<tr>{line(row, 'td')}</tr>"
        for i, row in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table><thead><tr>{line(columns, "th")}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Names and what they are."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items if v) + "</dl>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    return f'<div class="note">{escape(text)}</div>'


def heading(text: str, anchor: str = "", level: int = 2) -> str:
    return f'<h{level} id="{anchor}">{escape(text)}</h{level}>' if anchor else f"<h{level}>{escape(text)}</h{level}>"


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
