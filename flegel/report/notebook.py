"""The picture of a run inside a notebook: the objective over time, and where workers spent theirs. Reads no file."""

from __future__ import annotations

from flegel.report import timeline
from flegel.report.saved_run import objective_curve, of_result
from flegel.report.svg import style
from flegel.results.result import Result

PICTURE_WIDTH = 640.0  # pixels
STYLE_SCOPE = ".flegel-run"


def notebook_picture(result: Result) -> str:
    """Pictures with their own style sheet, for light and dark."""
    drawn = of_result(result.to_json(), result.rows).picture
    parts = []
    points = [(t, v) for t, v, _ in drawn.curve if v is not None]
    if len(points) > 1:
        parts.append(objective_curve(points, PICTURE_WIDTH).svg())
    if drawn.timeline.lanes:
        parts.append(timeline.draw([(result.sync, drawn.timeline)], PICTURE_WIDTH).svg())
    return f'<div class="flegel-run"><style>{style(STYLE_SCOPE)}</style>{"".join(parts)}</div>'
