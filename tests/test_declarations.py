"""What a class declares besides its hooks: eight typed objects, optional hooks, names of earlier versions."""

from __future__ import annotations

import inspect
import re
from typing import Any, ClassVar

import numpy as np
import pytest

import flegel
from flegel import Accepts, Algorithm, Learning, UsageError
from flegel.algorithm import DECLARED
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.declarations.check import MOVED
from flegel.declarations.figures import ModelHooks
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.learning import LearningHooks
from flegel.declarations.optional import OPTIONAL_HOOKS, defines, hook, hook_named
from flegel.torch.network import NeuralNetwork

BUILT_IN = [KMeans, GMM, FCM, LR, NMF, NeuralNetwork]


def test_a_class_in_sight_is_small() -> None:
    own = vars(Algorithm)
    methods = [name for name, value in own.items() if not name.startswith("_") and name not in DECLARED]
    assert len(methods) <= 20, methods
    assert sorted(name for name in Algorithm.__annotations__ if not name.startswith("_")) == sorted(DECLARED)
    assert len(DECLARED) <= 8


@pytest.mark.parametrize("name", sorted(MOVED))
def test_an_attribute_of_earlier_versions_is_refused_with_the_new_spelling(name: str) -> None:
    with pytest.raises(UsageError, match=f"write `.* = .*` in place of `{name}`"):
        type("Old", (Algorithm,), {name: True})
    with pytest.raises(UsageError, match=f"in place of `{name}`"):
        type("Old", (Algorithm,), {name: True, "__annotations__": {name: ClassVar[bool]}})
    with pytest.raises(UsageError, match=f"in place of `{name}`"):
        type("Old", (Algorithm,), {name: property(lambda self: True)})


@pytest.mark.parametrize("name", sorted(MOVED))
def test_the_new_spelling_is_one_that_python_accepts(name: str) -> None:
    attribute, value = MOVED[name].split(" = ", 1)
    field = value[value.index("(") + 1 : value.index("=")]
    usual = repr(getattr(DECLARED[attribute](), field))
    made = eval(value.replace("…", usual), vars(flegel) | {n: getattr(flegel, n) for n in flegel.__all__})
    assert isinstance(made, DECLARED[attribute])


def test_hyper_parameters_and_methods_may_have_such_names() -> None:
    with pytest.warns(UserWarning) as said:

        class Free(Algorithm):
            sparse: bool = True
            instead: int = 3
            hidden: int = 64

            def starting(self) -> int:
                return self.instead

    (warning,) = said
    assert "no method reads the hyper-parameter `sparse`" in str(warning.message)
    assert "write `accepts = Accepts(sparse=…)` in its place" in str(warning.message)

    made = Free(sparse=False)
    assert made.hyper() == {"sparse": False, "instead": 3, "hidden": 64} and made.starting() == 3
    assert not made.accepts.sparse


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_a_hyper_parameter_with_the_name_of_a_declaration_is_refused(name: str) -> None:
    for members in ({name: 3}, {name: 3, "__annotations__": {name: int}}, {"__annotations__": {name: int}}):
        with pytest.raises(UsageError, match=f"`{name}` is what the class declares by a flegel."):
            type("Other", (Algorithm,), members)


def test_a_declaration_may_depend_on_hyper_parameters() -> None:
    class Either(Algorithm):
        up: bool = False

        @property
        def learning(self) -> Learning:  # type: ignore[override]
            return Learning(maximize=self.up)

    assert Either(up=True).learning.maximize and not Either().learning.maximize


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_a_declaration_under_another_name_is_refused_with_the_right_one(name: str) -> None:
    with pytest.raises(UsageError, match=f"`mine` holds a flegel.{DECLARED[name].__name__}.*write `{name} = …`"):
        type("Misspelt", (Algorithm,), {"mine": DECLARED[name]()})


def test_a_hyper_parameter_with_the_name_of_a_method_is_refused() -> None:
    for name in ("hyper", "objective", "hyper_parameters", "predict"):
        with pytest.raises(UsageError, match=f"`{name}` is a method of every algorithm"):
            type("Other", (Algorithm,), {name: 3, "__annotations__": {name: int}})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Accepts(sparse="yes"), r"Accepts(sparse='yes'): sparse is True or False; correct the class."),  # type: ignore[arg-type]
        (lambda: Accepts(labels="needed"), "labels is one of 'optional', 'required', 'classes', 'ignored'"),  # type: ignore[arg-type]
        (lambda: flegel.Statistics(spent="visits"), "spent is a tuple of names, such as ('counts',)"),  # type: ignore[arg-type]
        (lambda: Learning(tolerance="small"), "tolerance is a number"),  # type: ignore[arg-type]
        (lambda: flegel.HyperNames(instead=3), "instead is a dictionary of names"),  # type: ignore[arg-type]
        (lambda: flegel.ParameterPlacement(sharding="yes"), "sharding is of another type"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_another_type_is_refused_in_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        make()


def test_lists_and_integers_are_taken_for_tuples_and_numbers() -> None:
    assert flegel.Statistics(spent=["visits"]).spent == ("visits",)  # type: ignore[arg-type]
    assert Learning(tolerance=1, maximize=np.True_) == Learning(tolerance=1.0, maximize=True)  # type: ignore[arg-type]


def test_an_unknown_field_is_refused_by_python() -> None:
    with pytest.raises(TypeError, match="sparze"):
        Accepts(sparze=True)  # type: ignore[call-arg]


def test_an_optional_hook_is_the_method_of_the_class_or_the_default() -> None:
    class Plain(Algorithm):
        model: str = "a hyper-parameter of this name is no hook"

        def baseline(self, aggregator: Any, parameter: Any) -> float:
            return 7.0

    made = Plain()
    assert defines(made, LearningHooks.baseline) and not defines(made, LearningHooks.optimality)
    assert hook(made, LearningHooks.baseline)(None, None) == 7.0
    assert hook(made, LearningHooks.optimality)(None, None) is None
    assert hook(made, ModelHooks.model)(None) is None
    assert hook(made, KernelHooks.layout_for)(3) == "rows"
    assert hook_named(made, "baseline")(None, None) == 7.0 and hook_named(made, "finished")(None) == ""
    with pytest.raises(UsageError, match="Plain gives no scores"):
        hook(made, ModelHooks.scores)(np.zeros((1, 1)), None)


@pytest.mark.parametrize("cls", BUILT_IN)
def test_optional_hooks_of_built_in_classes_take_what_they_are_given(cls: type[Algorithm]) -> None:
    """No base class declares them, so the type checker does not compare."""
    for name, default in OPTIONAL_HOOKS.items():
        own = getattr(cls, name, None)
        if own is not None:
            wanted = len(inspect.signature(default).parameters)
            assert len(inspect.signature(own).parameters) == wanted, f"{cls.__name__}.{name}"
            assert not hasattr(Algorithm, name)


def test_a_hook_with_other_capitals_is_refused_where_the_class_is_defined() -> None:
    for name, right in (("updateDatapoint", "updateDataPoint"), ("init_parameter", "initParameter")):
        with pytest.raises(UsageError, match=f"Mine defines {name}, which nothing calls; did you mean '{right}'"):
            type("Mine", (Algorithm,), {name: lambda self: None})
    both = {"updateParameter": lambda self: None, "update_parameter": lambda self: None, "init": lambda self: None}
    assert type("Mine", (Algorithm,), both).updateParameter is both["updateParameter"]


def test_a_job_of_a_class_without_hooks_hears_which_are_lacking() -> None:
    class Empty(Algorithm):
        pass

    class Misspelt(Algorithm):
        def updateParametr(self) -> None: ...

        def initParameter(self, sample: Any, rng: Any) -> Any: ...

    with pytest.raises(UsageError, match=r"Empty does not define initParameter, contribution .*, updateParameter, wh"):
        flegel.run(Empty(), np.ones((4, 2)), workers=1)
    with pytest.raises(UsageError, match=r"define contribution .*, updateParametr may be meant for"):
        flegel.run(Misspelt(), np.ones((4, 2)), workers=1)
