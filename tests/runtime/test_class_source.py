"""User classes travel as source: with what they use, without what they do not, with their own line numbers."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flegel.algorithm import Algorithm
from flegel.errors import AlgorithmError, UsageError, own_traceback
from flegel.job import AlgorithmRef
from flegel.loading.class_source import in_plain, instantiate, load_class, reference
from flegel.loading.code_gate import Consent
from flegel.loading.syntax_tree import parse_source
from flegel.runtime.job.find_algorithm import find_algorithm


def module(path: Path, text: str) -> Any:
    """The text as a file, imported as a user's module would be."""
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def travelled(algorithm: Algorithm) -> Algorithm:
    """As a worker gets it: nothing but plain JSON came over."""
    ref = in_plain(reference(algorithm))
    again = instantiate(AlgorithmRef(ref.name, json.loads(json.dumps(ref.hyper)), ref.source), Consent.SUBMITTED)
    assert type(again) is not type(algorithm)
    return again


def test_builtins_travel_by_name_only() -> None:
    from flegel.algorithms.kmeans import KMeans

    ref = reference(KMeans(k=3))
    assert ref.builtin and ref.name == "flegel.algorithms.kmeans.kmeans:KMeans"
    assert instantiate(ref, None).hyper()["k"] == 3


def test_helpers_tuples_constants_arrays_and_imports_travel(tmp_path: Path) -> None:
    made = module(
        tmp_path / "carried.py",
        """
        import math
        import numpy as np
        from collections import Counter
        from typing import NamedTuple
        from flegel import Algorithm

        SCALE = 2.5
        WEIGHTS = np.array([1.0, 2.0])
        NAMES = ("a", "b")
        LIMIT = float("inf")

        class Pair(NamedTuple):
            left: float
            right: float

        def inner(x):
            return x * SCALE

        def helper(x):
            return inner(x) + math.floor(1.5)

        class Base(Algorithm):
            k: int = 3

            def shared(self):
                return "base"

        class Mine(Base):
            def terminationCheck(self, aggregator, iterationNum):
                assert Counter(NAMES)["a"] == 1 and LIMIT > 1e300
                return Pair(helper(2.0), float(WEIGHTS.sum()) + self.k)
        """,
    )
    mine = travelled(made.Mine(k=4))
    assert tuple(mine.terminationCheck(None, 0)) == (6.0, 7.0)
    assert mine.shared() == "base"


def test_postponed_annotations_stay_postponed(tmp_path: Path) -> None:
    made = module(
        tmp_path / "postponed.py",
        """
        from __future__ import annotations
        from flegel import Algorithm

        class Later(Algorithm):
            k: int = 3

            def terminationCheck(self, aggregator: NotThereAtAll, iterationNum) -> Neither:
                return True
        """,
    )
    assert travelled(made.Later(k=5)).hyper() == {"k": 5}


def test_locals_that_share_the_name_of_a_global_do_not_drag_it_along(tmp_path: Path) -> None:
    made = module(
        tmp_path / "shadow.py",
        """
        import threading
        from flegel import Algorithm

        x = threading.Lock()
        total = open(__file__)

        class Shadow(Algorithm):
            def terminationCheck(self, aggregator, iterationNum):
                x = 1
                total = [total for total in range(3)]
                return x + sum(total)

            def updateParameter(self, x, total):
                return x
        """,
    )
    assert travelled(made.Shadow()).terminationCheck(None, 0) == 4


def test_a_global_that_cannot_be_sent_is_named_with_its_user(tmp_path: Path) -> None:
    made = module(
        tmp_path / "locked.py",
        """
        import threading
        from flegel import Algorithm

        lock = threading.Lock()

        class Locked(Algorithm):
            def updateParameter(self, aggregator, oldParameter):
                with lock:
                    return oldParameter
        """,
    )
    with pytest.raises(UsageError, match=r"Locked uses the global 'lock' \(lock\), which cannot be sent"):
        reference(made.Locked())


def test_hyper_parameters_of_several_types_travel(tmp_path: Path) -> None:
    made = module(
        tmp_path / "hyper.py",
        """
        from typing import Annotated, Literal
        import numpy as np
        from msgspec import Meta
        from flegel import Algorithm

        class Hyper(Algorithm):
            k: Annotated[int, Meta(ge=1)] = 3
            rate: float = 0.5
            name: str = "x"
            flag: bool = False
            limit: int | None = 7
            sizes: list[int] = [1, 2]
            kind: Literal["a", "b"] = "a"
            start: str | np.ndarray = "none"
            other: str | None = None
        """,
    )
    sent = made.Hyper(k=4, rate=1.5, name="y", flag=True, limit=None, sizes=[5], kind="b", start=np.eye(2))
    got = travelled(sent).hyper()
    np.testing.assert_array_equal(got.pop("start"), np.eye(2))
    assert got == {
        "k": 4,
        "rate": 1.5,
        "name": "y",
        "flag": True,
        "limit": None,
        "sizes": [5],
        "kind": "b",
        "other": None,
    }


def test_tracebacks_point_to_the_users_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "pointing.py"
    made = module(
        path,
        """
        from flegel import Algorithm

        # a comment that moves everything down

        def helper():
            raise ValueError("here")

        class Pointing(Algorithm):
            def updateParameter(self, aggregator, oldParameter):
                return helper()
        """,
    )
    with pytest.raises(ValueError, match="here") as caught:
        travelled(made.Pointing()).updateParameter(None, None)
    lines = path.read_text().splitlines()
    trace = own_traceback(caught.value)
    for wanted in ("return helper()", 'raise ValueError("here")'):
        number = next(i for i, line in enumerate(lines, 1) if wanted in line)
        assert f'File "{path}", line {number}' in trace
        assert wanted in trace


def test_the_same_class_is_loaded_once(tmp_path: Path) -> None:
    made = module(tmp_path / "once.py", "from flegel import Algorithm\n\nclass Once(Algorithm):\n    pass\n")
    ref = reference(made.Once())
    assert load_class(ref, Consent.SUBMITTED) is load_class(ref, Consent.SUBMITTED)
    assert reference(instantiate(ref, Consent.SUBMITTED)) == ref, "a worker can pass it on"


def test_a_reference_cannot_name_anything_but_an_algorithm() -> None:
    with pytest.raises(UsageError, match="no built-in"):
        load_class(AlgorithmRef("os:system", {}), None)
    with pytest.raises(UsageError, match="not a subclass"):
        load_class(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeansSums", {}), None)


def test_a_class_whose_source_is_nowhere_is_refused() -> None:
    scope: dict[str, Any] = {"__name__": __name__}
    exec("from flegel import Algorithm\nclass Nowhere(Algorithm):\n    pass\n", scope)
    with pytest.raises(UsageError, match=r"source of Nowhere cannot be found.*\.py file"):
        reference(scope["Nowhere"]())


def test_a_class_inside_a_function_is_refused_or_travels_but_never_as_another() -> None:
    class Inside(Algorithm):
        k: int = 1

    with pytest.raises(UsageError, match="Inside"):
        reference(Inside())


# -- files and scripts -------------------------------------------------------------------------------------


def test_a_class_from_a_file_may_import_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_mine.py").write_text("def three():\n    return 3\n")
    (tmp_path / "mine.py").write_text(
        "from neighbour_of_mine import three\nfrom flegel import Algorithm\n\n"
        "class Mine(Algorithm):\n    def terminationCheck(self, aggregator, iterationNum):\n        return three()\n"
    )
    found = find_algorithm(f"{tmp_path}/mine.py:Mine")
    assert travelled(found()).terminationCheck(None, 0) == 3


@pytest.mark.parametrize(
    ("word", "error", "words"),
    [
        ("kmean", UsageError, "did you mean 'kmeans'"),
        ("{}/none.py:X", UsageError, "There is no file"),
        ("{}/good.py:Goood", UsageError, "did you mean 'Good'"),
        ("{}/good.py", UsageError, "good.py:Good"),
        ("{}/good.py:Other", UsageError, "neither a subclass of flegel.Algorithm"),
        ("{}/syntax.py:X", UsageError, "not valid Python"),
        ("{}/raises.py:X", AlgorithmError, "ZeroDivisionError"),
    ],
)
def test_a_word_that_names_no_algorithm_gets_a_sentence(
    tmp_path: Path, word: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "good.py").write_text(
        "from flegel import Algorithm\n\nclass Good(Algorithm):\n    pass\n\nclass Other:\n    pass\n"
    )
    (tmp_path / "syntax.py").write_text("class X(:\n")
    (tmp_path / "raises.py").write_text("class X:\n    pass\n\n1 / 0\n")
    with pytest.raises(error, match=words):
        find_algorithm(word.format(tmp_path))


SCRIPT = """
import numpy as np
from flegel import Algorithm, run

print("script body runs")
data = np.arange(40.0).reshape(20, 2)
GAIN = 1.0

def weigh(x):
    return GAIN * x

class Means(Algorithm):
    def initParameter(self, sample, rng):
        return np.zeros(2)

    def initState(self, points, columns, rng):
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        change = np.zeros(3)
        if dataPoint.state[0] == 0.0:
            for t in range(2):
                change[t] = weigh(dataPoint.features[t])
            change[2] = 1.0
            dataPoint.state[0] = 1.0
        return change

    def updateParameter(self, aggregator, oldParameter):
        return aggregator[:2] / max(aggregator[2], 1.0)

result = run(Means(), data, workers=2, sync="bsp", max_iterations=2)
print(result.parameters["value"].tolist())
"""


@pytest.mark.processes
def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["script body runs", "[19.0, 20.0]"], "the body ran once, in this process only"


def test_a_text_is_parsed_again_where_threads_mixed_depths_up(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, raised = ast.parse, [SystemError("AST constructor recursion depth mismatch (before=42, after=35)")]

    def parse(text: str) -> ast.Module:
        if raised:
            raise raised.pop()
        return plain(text)

    monkeypatch.setattr(ast, "parse", parse)
    assert isinstance(parse_source("x = 1").body[0], ast.Assign)
    with pytest.raises(SyntaxError):
        parse_source("x =")
