"""What a newcomer types in the first hour, typed: does it end as the pages promise? Prints a table, exits with 1 where
something differs.

    python -m bench.first_hour [--fast] [--keep FOLDER]

Makes an empty environment, installs this checkout into it as README says, generates small data, and runs every command
in a folder of its own and in the checkout. `--fast` takes the environment that runs it, and leaves out what takes long.
Real tables are used where FLEGEL_TEST_DATA names their folder. It measures no speed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900.0  # seconds of one command, on a busy machine
SHOWN = 70  # characters of a cell
SAMPLE = 100_000  # rows from which a job chooses its start: a rare class lies behind them


REAL = {
    "u.data*": "nmf --data {} --set rank=10 --max-passes 20",
    "kddcup.data_10_percent*": "lr --data {} --label -1 --max-passes 2",
    "HTRU_2.csv*": "gmm --data {} --label -1 --set k=2",
    "ratings.csv*": "nmf --data {} --set rank=10 --max-passes 20",
    "penguins.csv.gz": "lr --data {} --label species --missing drop",
    "diamonds.csv.gz": "kmeans --data {} --set k=5",
}
"""Tables that newcomers take, by the names of their files, and what is typed for them."""


class Step(NamedTuple):
    """One thing that is typed."""

    command: str
    """For a shell; text with several lines is a script of Python."""
    expected: str
    """A pattern that occurs in what is printed."""
    code: int = 0
    in_checkout: bool = False
    slow: bool = False
    """Left out by --fast: it takes long, or another test types the same."""

    @property
    def shown(self) -> str:
        lines = [line for line in self.command.splitlines() if line and not line.startswith(("import", "from"))]
        return ("python: " if "\n" in self.command else "") + " ; ".join(lines)


README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0]
SHOWN_RESULT = re.findall(r"^<(Result of kmeans: objective \S+)", README, re.MULTILINE)[0]
COMMANDS = re.findall(r"^flegel .*$", README, re.MULTILINE)
"""What README tells people to type, and what it says that they see, as far as that does not depend on speed."""
ARRAYS = """
import numpy as np, flegel
from flegel.algorithms.kmeans import KMeans
X = np.load("embeddings.npy")
print(flegel.run(KMeans(k=1000, init=X[:1000]), X, workers=2, max_iterations=2, out="embedded"))
print(flegel.load("embedded").predict(X[:3]))
"""
SCORES = """
import numpy as np, flegel
from flegel.algorithms.lr import LR
X = np.random.default_rng(0).normal(size=(500, 3))
y = np.where(X[:, 0] > 0, "pulsar", "noise")
result = flegel.run(LR(), (X, y), out="scored")
print("score", result.score(X, y), sorted(result.metrics))
model = flegel.load("scored")
print(model, model.predict("plain.csv")[:2])
"""
OPTIMUM = """
import numpy as np, flegel
from flegel.algorithms.lr import LR
from sklearn.linear_model import LogisticRegression
rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 6)) * np.logspace(-3, 3, 6)
y = (X @ np.logspace(3, -3, 6) + rng.logistic(size=2000) > 0).astype(int)
result = flegel.run(LR(), (X, y), scale="standard", workers=1)
Z = (X - X.mean(0)) / X.std(0)
peer = LogisticRegression(C=1e6, max_iter=10_000).fit(Z, y)
print("accuracy", round(result.score(X, y), 2) >= round(peer.score(Z, y), 2) - 0.01)
"""

PYTHON = """
import numpy as np, flegel
from flegel.algorithms.lr import LR
X = np.random.default_rng(0).normal(size=(300, 3))
print(flegel.run(LR(), X, (X[:, 0] > 0).astype(int)))
"""
GAPS = """
import numpy as np, flegel
from flegel.algorithms.kmeans import KMeans
X = np.random.default_rng(0).normal(size=(300, 3))
X[3, 1] = np.nan
try:
    flegel.run(KMeans(k=2), X)
except flegel.DataError as error:
    print(error)
"""
SEARCH = """
import numpy as np
from sklearn.model_selection import GridSearchCV
from flegel.sklearn import LogisticRegression
X = np.random.default_rng(0).normal(size=(2000, 10))
y = (X[:, 0] > 0).astype(int)
search = GridSearchCV(LogisticRegression(), {"C": [0.01, 0.1, 1.0, 10.0]}, cv=2, n_jobs=2).fit(X, y)
print("search finished,", np.isfinite(search.cv_results_["split0_test_score"]).sum() * 2, "of 8 fits")
"""
CUBE = """
import numpy as np, flegel
from flegel.algorithms.kmeans import KMeans
try:
    print(flegel.run(KMeans(k=2), np.ones((10, 30, 3))))
except flegel.FlegelError as error:
    print("refused:", error)
"""


def steps(data: Path | None) -> Iterator[Step]:
    """Everything, in the order in which it is typed."""
    clusters = ROOT / "docs" / "examples" / "clusters.py"
    # In the fast form, tests/test_documented_classes.py has these three,
    yield Step(f"flegel check {clusters}:Clusters", "ok  statistics conserve", slow=True)
    own = f"flegel submit {clusters}:Clusters --data points.csv --set k=3"
    yield Step(own, "saved to runs/Clusters-points-001", slow=True)
    yield Step(f"{own} --sync bsp", "saved to runs/Clusters-p", slow=True)
    # tests/test_typed_blocks.py the example and the commands of README, except for what the example prints, and
    # tests/test_figures.py, test_newcomer.py, test_cli.py and datasets/test_ratings.py what the others say.
    yield Step(EXAMPLE, re.escape(SHOWN_RESULT))
    yield Step(EXAMPLE, re.escape(SHOWN_RESULT), in_checkout=True, slow=True)
    for command in COMMANDS:
        what = {"submit": "saved to runs/kmeans-blobs-001", "predict": r"(?m)^\d$"}
        yield Step(command, what.get(command.split()[1], r"(?m)^blobs\.csv$"), slow=True)
    yield Step(
        "flegel submit kmeans --data points.csv --set k=10 --workers 4", "saved to runs/kmeans-points-001", slow=True
    )
    yield Step("flegel predict runs/kmeans-points-001 --data points.csv", r"(?m)^\d$", slow=True)
    yield Step("flegel submit kmeans --data points.csv --set k=3", "(?m)^rows in clusters 0 to 2: ", slow=True)
    yield Step(ARRAYS, "Result of kmeans", slow=True)
    embedded = "flegel submit kmeans --data embeddings.npy --set k=1000 --set init=init.npy --max-iterations 2"
    yield Step(embedded, "saved to runs/kmeans-embeddings-001", slow=True)
    yield Step("flegel submit lr --data rare.csv.gz --label -1 --max-passes 3", "saved to runs/lr-rare-csv-001")
    words = "--set classes=[noise,pulsar]"
    yield Step(f"flegel submit lr --data pulsars.csv --label kind {words}", "saved to runs/lr-pulsars-001", slow=True)
    yield Step(OPTIMUM, "accuracy True", slow=True)
    yield Step("flegel submit nmf --data u.data --set rank=4 --max-passes 20", r"(?is)ratings.*rmse", slow=True)
    named = "--format ratings --columns user,item,rating"
    yield Step(f"flegel submit nmf --data listed.csv --set rank=4 --max-passes 20 {named}", "(?i)rmse", slow=True)
    validated = "flegel submit lr --data pulsars.csv --label kind --validate 0.1"
    yield Step(validated, "(?is)accuracy.*validation|validation.*accuracy", slow=True)
    yield Step(SCORES, r"(?s)score (0\.9|1).*accuracy.*log_loss.*Model of LR.*(noise|pulsar)")
    yield Step("flegel submit gmm --data points.csv --set k=3", "(?i)bic", slow=True)
    yield Step("flegel submit kmeans --data gaps.csv --set k=3", "--missing", code=2)
    yield Step("flegel submit kmeens --data points.csv", "kmeans", code=2, slow=True)
    yield Step("flegel warm kmeans --dtype float32 --set k=10", r"(?m)^kmeans float32: \d", slow=True)
    yield Step("flegel warm kmeans --dtype float32", r"(?m)^kmeans float32, \d+ kernels .*: \d", slow=True)
    yield Step("flegel submit kmeans --data people.csv --set k=2", "column customer_id: .*--drop customer_id")
    rarely = "flegel submit lr --data rarely.csv --label kind --max-passes 20"
    yield Step(rarely, "never predicted.*class_weight=balanced", slow=True)
    compared = "--set rank=2 --sync bsp,fsp --workers 1 --repeat 1 --max-seconds 20"
    yield Step(f"flegel compare nmf --data listed.csv {named} {compared}", "(?m)^fsp ", slow=True)
    yield Step("flegel --help", "submit")
    yield Step(PYTHON, "Result of lr", slow=True)
    yield Step(GAPS, 'missing="', slow=True)
    yield Step(CUBE, "refused: ", slow=True)
    yield Step("flegel top", "of yours on this host", slow=True)
    yield Step("flegel jobs", "Nothing listens at tcp://127.0.0.1:7077", code=1, slow=True)
    yield Step(SEARCH, r"search finished, \d+ of 8 fits", slow=True)
    for pattern, task in REAL.items():
        for table in sorted(data.rglob(pattern))[:1] if data is not None else ():
            yield Step(f"flegel submit {task.format(table)} --out {table.name}-model", "saved to", slow=True)


def generate(folder: Path) -> None:
    """Small tables of every kind that is typed."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(400, 3)) + rng.integers(3, size=(400, 1)) * 4.0
    np.savetxt(folder / "points.csv", points, delimiter=",", fmt="%.5f")
    np.savetxt(folder / "plain.csv", points, delimiter=",", fmt="%.5f")
    words = np.where(points[:, 0] + rng.normal(size=400) > 4, "pulsar", "noise")
    rows = [f"{a:.4f},{b:.4f},{word}" for (a, b, _), word in zip(points, words, strict=True)]
    (folder / "pulsars.csv").write_text("\n".join(["width,depth,kind", *rows]) + "\n")
    gaps = [f"{a:.4f},{'' if i % 9 == 0 else round(b, 4)}" for i, (a, b, _) in enumerate(points)]
    (folder / "gaps.csv").write_text("\n".join(["width,depth", *gaps]) + "\n")
    people = [f"{1000 + i * 7 % 401},{a:.2f},{b:.2f}" for i, (a, b, _) in enumerate(points)]
    (folder / "people.csv").write_text("\n".join(["customer_id,width,depth", *people]) + "\n")
    rarely = [f"{a:.2f},{b:.2f},{'rare' if i < 5 else 'common'}" for i, (a, b, _) in enumerate(points)]
    (folder / "rarely.csv").write_text("\n".join(["width,depth,kind", *rarely]) + "\n")
    embeddings = rng.normal(size=(1_200, 384)).astype(np.float32)
    np.save(folder / "embeddings.npy", embeddings)
    np.save(folder / "init.npy", embeddings[:1_000])
    ratings = [(u, i, 1 + (u * i) % 5, 880_000_000 + u) for u in range(1, 60) for i in range(1, 40) if (u + i) % 3]
    (folder / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in ratings))
    listed = [f"{u},{i},{r}" for u, i, r, _ in ratings]
    (folder / "listed.csv").write_text("\n".join(["user,item,rating", *listed]) + "\n")
    count = SAMPLE + 20_000
    kinds = np.where(rng.random(count) < 0.5, "normal.", "smurf.").astype(object)
    kinds[rng.choice(count, 5, replace=False)] = "spy."
    values = rng.normal(size=count) + (kinds == "smurf.") * 2.0
    with gzip.open(folder / "rare.csv.gz", "wt") as stream:
        stream.writelines(f"{value:.3f},{kind}\n" for value, kind in zip(values, kinds, strict=True))


def installed(folder: Path) -> Path:
    """The programs of an environment that has this checkout installed, and nothing else that was here before."""
    programs = folder / "environment" / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(programs.parent)], check=True)
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([str(programs / "pip"), "install", *quiet, ".", "scikit-learn"], cwd=ROOT, check=True)
    return programs


def typed(step: Step, programs: Path, folder: Path, fast: bool) -> tuple[str, bool]:
    """What is seen, in short, and whether it is as expected."""
    unset = ("FLEGEL_MASTER", "PYTHON") if fast else ("FLEGEL_MASTER", "FLEGEL_WARM", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    if not fast:  # nothing is compiled yet on a machine with nothing
        environment["FLEGEL_CACHE"] = str(folder / "cache")
    environment["PATH"] = f"{programs}{os.pathsep}{environment.get('PATH', '')}"
    where = ROOT if step.in_checkout else folder
    script = "\n" in step.command
    # A script is read from standard input, as in a console: then Python looks for modules in the current folder.
    command = [str(programs / "python"), "-"] if script else ["sh", "-c", step.command]
    try:
        done = subprocess.run(
            command, input=step.command if script else "", cwd=where, env=environment, capture_output=True, text=True,
            timeout=LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT:.0f} s", False
    said = done.stdout + done.stderr
    good = done.returncode == step.code and re.search(step.expected, said) is not None
    good = good and "Traceback" not in said
    lines = [line for line in said.strip().splitlines() if line.strip()]
    matching = [line for line in lines if step.expected and re.search(step.expected, line)]
    return f"exit {done.returncode}: {(matching or lines or [''])[-1].strip()}", good


def cell(text: str) -> str:
    text = " ".join(text.replace("|", "¦").split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="this environment; leave out what takes long")
    parser.add_argument("--keep", type=Path, help="a folder to work in, which stays")
    given = parser.parse_args()
    named = os.environ.get("FLEGEL_TEST_DATA")
    with tempfile.TemporaryDirectory(prefix="flegel-first-hour-") as scratch:
        folder = (given.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        programs = Path(sys.executable).parent if given.fast else installed(folder)
        work = folder / "work"
        work.mkdir(exist_ok=True)
        generate(work)
        differences = 0
        print("| command | seen | expected | |\n|---|---|---|---|", flush=True)
        for step in steps(Path(named) if named else None):
            if given.fast and step.slow:
                continue
            seen, good = typed(step, programs, work, given.fast)
            differences += not good
            expected = f"exit {step.code}: {step.expected}"
            mark = "same" if good else "DIFFERS"
            print(f"| {cell(step.shown)} | {cell(seen)} | {cell(expected)} | {mark} |", flush=True)
    print(f"\n{differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
