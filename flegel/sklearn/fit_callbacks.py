"""Callbacks of scikit-learn (progress bars, scoring monitors; from version 1.9 on) hear of our fits.

A fit is a task, and each pass over the rows a task inside it. Never changes what a fit gives, unless one ends it.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from flegel.core.pytree import Tree
from flegel.runtime.job.observers import JobBegan, JobControl, JobEnded, JobEvent, Observer, PassEnded

__all__ = ["CallbackSupportMixin", "PassesAsTasks", "heard_by_callbacks"]

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks

    KNOWN = True
except ImportError:  # scikit-learn before 1.9
    KNOWN = False

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: such a version has no callbacks."""

    def with_callbacks(method: Any) -> Any:
        return method


MANAGED = ("_callback_fit_ctx", "_skl_callbacks_to_teardown")
"""Attributes by which scikit-learn's own methods tear callbacks down when they return; a fit of theirs inside ours is
not to."""


class FitTask(NamedTuple):
    """The task of a running fit: its context, and what was given to `fit`."""

    context: Any
    given: dict[str, Any]
    """X, y and metadata, as hooks of callbacks take them."""


def heard_by_callbacks(fit: Callable[..., Any]) -> Callable[..., Any]:
    """`fit`, or `fit_transform`, as a task of the callbacks that were set; of calls inside each other the outermost."""

    @functools.wraps(fit)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        if not getattr(self, "_skl_callbacks", None) or hasattr(self, "_fit_task"):
            return fit(self, *args, **named)
        return _as_task(self, fit, args, named)

    method.is_heard = True  # type: ignore[attr-defined]
    return method


@with_callbacks  # type: ignore[untyped-decorator, unused-ignore]
def _as_task(estimator: Any, fit: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Tell of the begin and the end of the fit; callbacks are torn down in any case."""
    arguments = inspect.signature(fit).bind(estimator, *args, **named).arguments
    X, y = arguments.pop("X"), arguments.pop("y", None)
    metadata = {name: value for name, value in list(arguments.items())[1:] if value is not None}
    given = {"X": X, "y": y, "metadata": metadata or None}
    context = estimator._init_callback_context(max_subtasks=estimator._most_passes())
    context.call_on_fit_task_begin(estimator=estimator, **given)
    estimator._fit_task = FitTask(context, given)
    kept = {name: vars(estimator).pop(name) for name in MANAGED}
    try:
        answer = fit(estimator, *args, **named)
    finally:
        del estimator._fit_task
        vars(estimator).update(kept)
    context.call_on_fit_task_end(estimator=estimator, reconstruction_attributes={}, **given)
    return answer


class PassesAsTasks(Observer):
    """Tells callbacks of each pass of a job. `fitted`: sets the attributes of an estimator from θ, and says whether it
    could. An error of a callback ends the fit, as it does in scikit-learn; so does one that returns True."""

    passes = True
    required = True
    shown = 0

    def __init__(self, estimator: Any, fitted: Callable[[Any, Tree], bool]) -> None:
        self._estimator, self._fitted = estimator, fitted
        self._task: FitTask = estimator._fit_task
        self._control = JobControl()
        self._pass: Any = None
        self._begun = len(self._task.context._children_map)

    def see(self, event: JobEvent) -> None:
        """A pass begins with the job and with the end of the one before; the one that begins last is never made, and is
        ended without a model, as scikit-learn does it."""
        match event:
            case JobBegan(_, control):
                self._control = control
                self._begin(None)
            case PassEnded():
                attributes = functools.cache(functools.partial(self._attributes, event.parameter))
                if self._end(attributes):
                    self._control.end("a callback ended the fit")
                if not self._control.why():
                    self._begin(attributes)
            case JobEnded():
                self._end(None)

    def _begin(self, attributes: Callable[[], dict[str, Any] | None] | None) -> None:
        context = self._task.context
        if self._pass is not None or self._begun >= context.max_subtasks:  # several jobs of one fit may make more
            return
        self._begun += 1
        self._pass = context.subcontext(task_name="iteration")
        self._pass.call_on_fit_task_begin(
            estimator=self._estimator, reconstruction_attributes=attributes, **self._task.given
        )

    def _end(self, attributes: Callable[[], dict[str, Any] | None] | None) -> bool:
        """Whether a callback wants no more."""
        ended, self._pass = self._pass, None
        if ended is None:
            return False
        given = {} if attributes is None else self._task.given
        said = ended.call_on_fit_task_end(estimator=self._estimator, reconstruction_attributes=attributes, **given)
        return bool(said)

    def _attributes(self, parameter: Callable[[], Tree]) -> dict[str, Any] | None:
        """Those that a fit which ended now would set; None where they need the end of the fit."""
        model = copy.copy(self._estimator)
        if not self._fitted(model, parameter()):
            return None
        before = vars(self._estimator)
        return {name: value for name, value in vars(model).items() if value is not before.get(name)}
