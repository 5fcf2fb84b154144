"""Models, results and traces on disk. No pickle: arrays are .npz, everything else is JSON or MessagePack.

A folder appears whole or not at all: everything is written into a hidden folder beside it, flushed to the disk, and
renamed. What exists is never overwritten.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any
from unicodedata import normalize

import msgpack
import msgspec
import numpy as np

from flegel.algorithm import Algorithm, Evaluation
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.datasets import Scaling, Treatment
from flegel.declarations.figures import ModelHooks
from flegel.declarations.optional import hook
from flegel.errors import StorageError, UsageError, nearest
from flegel.job import AlgorithmRef
from flegel.loading.array_files import read_npz
from flegel.loading.class_source import in_plain, instantiate, reference, with_hyper
from flegel.loading.code_gate import Consent
from flegel.loading.damage import damage_as
from flegel.loading.documents import read_json, read_records
from flegel.loading.regular_files import MAX_DOCUMENT_BYTES, read_regular
from flegel.messages import TreeLayout
from flegel.params.tree_layout import build, form_of
from flegel.results.prediction import answer, class_names, evaluate, model_of, predict, score
from flegel.results.result import Result, estimator, module_of
from flegel.wording import option

FORMAT = 1  # version of a saved result
MAX_NAME = 200  # letters


class ModelManifest(msgspec.Struct, forbid_unknown_fields=True):
    """model.json: everything but the arrays."""

    format: int
    algorithm: AlgorithmRef
    parameter: TreeLayout
    dataset: dict[str, Any]
    objective: float | None
    classes: list[str] | None = None
    has_state: bool = False
    treatment: Treatment | None = None
    """How tables become rows; models that were saved without it take plain numbers."""


class Model:
    """A saved model: parameters by name, and `predict`."""

    def __init__(self, manifest: ModelManifest, arrays: dict[str, Array], algorithm: Algorithm | None) -> None:
        self.manifest = manifest
        self._arrays = {k: v for k, v in arrays.items() if not k.startswith("__")}
        self.state = arrays.get("__state__")
        self.scaling = (arrays["__shift__"], arrays["__factor__"]) if "__shift__" in arrays else None
        self._algorithm = algorithm

    @property
    def treatment(self) -> Treatment:
        """How the columns of a table become rows of this model."""
        if self.manifest.treatment is not None:
            return self.manifest.treatment
        return Treatment(self.columns).scaled_by(None if self.scaling is None else Scaling(*self.scaling))

    @property
    def algorithm(self) -> Algorithm:
        if self._algorithm is None:
            raise UsageError(
                f"This model's class {self.manifest.algorithm.name} is code inside the model; load it with "
                f"{option('trust_code', True)} if you know where it comes from, or with your own class: "
                f"flegel.load(folder, algorithm={self.manifest.algorithm.name}())."
            )
        return self._algorithm

    @property
    def parameter(self) -> Tree:
        fields = self.manifest.parameter.fields or ("value",)
        return pytree.present(build(self.manifest.parameter, tuple(self._arrays[f] for f in fields), self.algorithm))

    @property
    def parameters(self) -> dict[str, Array]:
        """The model by name; all of θ where its class is not trusted."""
        return self._arrays if self._algorithm is None else model_of(self)[0]

    @property
    def internals(self) -> dict[str, Array]:
        """What else θ holds."""
        return {} if self._algorithm is None else model_of(self)[1]

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes, where the labels of training were words."""
        return self.manifest.classes

    @property
    def class_names(self) -> list[Any]:
        """What `predict` answers with: class names or label values, or the numbers of the clusters."""
        return class_names(self)

    @property
    def columns(self) -> int:
        return int(self.manifest.dataset["columns"])

    def to_sklearn(self) -> Any:
        """The model as a fitted estimator of scikit-learn; in a pipeline behind a scaler where the rows were scaled."""
        return estimator(self.algorithm, self.parameter, self.manifest.classes, self.scaling)

    @property
    def module(self) -> Any:
        """The saved network as an `nn.Module`."""
        return module_of(self.algorithm, self.parameter)

    def __repr__(self) -> str:
        """What a user wants to see first in a notebook: data, columns, classes, parameters, and what can be called."""
        about, data = self.manifest, self.manifest.dataset
        name = about.algorithm.name.rpartition(":")[2]
        told = f"{name} (its class is code inside the model)" if self._algorithm is None else repr(self._algorithm)
        rows = f"{data['rows']:,} rows of " if isinstance(data.get("rows"), int) else ""
        value = "" if about.objective is None else f", objective {about.objective:.6g}"
        names = self.treatment.feature_names
        shapes = (f"{key} {' × '.join(map(str, value.shape)) or 'number'}" for key, value in self.parameters.items())
        lines = [
            f"Model of {told}",
            f"  trained on {data.get('name', 'rows')}: {rows}{self.columns:,} columns{value}",
            *([f"  columns: {_listed(names)}"] if names else []),
            *([f"  classes: {_listed(self.classes)}"] if self.classes else []),
            f"  parameters: {', '.join(shapes)}",
            "  use: .predict(rows, frame or path), .score(rows, labels), .parameters",
        ]
        return "\n".join(lines)

    def score(self, features: Any, labels: Any = None, *, missing: str | None = None) -> float:
        """How good the model is on these rows, as `Result.score`."""
        with self._told_damage():
            return score(self, self.treatment, features, labels, missing)

    def evaluate(self, features: Any, labels: Any = None, *, missing: str | None = None) -> Evaluation:
        """The objective and other figures on these rows, as `Result.evaluate`."""
        with self._told_damage():
            return evaluate(self, self.treatment, features, labels, missing)

    def predict(self, features: Any, *, missing: str | None = None) -> Array:
        """What the model says about rows of a frame, an array or a file; class names where it was trained on names.
        `missing` as for `Result.predict`."""
        with self._told_damage():
            return predict(self, self.treatment, features, missing)

    def probabilities(self, features: Any, *, missing: str | None = None) -> Array:
        """(rows, classes or clusters), in the order of `class_names`."""
        with self._told_damage():
            return answer(self, self.treatment, hook(self.algorithm, ModelHooks.probabilities), features, missing)

    def distances(self, features: Any, *, missing: str | None = None) -> Array:
        """(rows, centroids)."""
        with self._told_damage():
            return answer(self, self.treatment, hook(self.algorithm, ModelHooks.distances), features, missing)

    def scores(self, features: Any, *, missing: str | None = None) -> Array:
        """How well each row fits, as `Result.scores`."""
        with self._told_damage():
            return answer(self, self.treatment, hook(self.algorithm, ModelHooks.scores), features, missing)

    def _told_damage(self) -> contextlib.AbstractContextManager[None]:
        """Around code of a built-in algorithm: what it cannot compute with is damage."""
        if not self.manifest.algorithm.builtin:
            return contextlib.nullcontext()
        return damage_as("This model is damaged: its parameters do not fit its algorithm and its columns")


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def check_target(folder: str | os.PathLike[str]) -> None:
    """Raise `UsageError`, before training, where the result could not be saved."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"{path} exists already and is not an empty folder; choose another {option('out')} or remove it."
        )
    check_folder(path)


def check_file(file: str | os.PathLike[str], option: str) -> None:
    """Raise `UsageError`, before anything is done, where this file cannot be written; what it holds may be replaced."""
    path = Path(file)
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file in it.")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"There is no folder for {path}; make it first.")
    if not (os.access(path, os.W_OK) if path.exists() else _takes_files(parent)):
        raise UsageError(f"Cannot write to {path}; choose another {option}.")


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise `UsageError`, before anything is done, where no files can be put into this folder, which may exist."""
    path = Path(folder)
    parent = next(p for p in [path.absolute(), *path.absolute().parents] if p.exists())
    if not parent.is_dir():
        raise UsageError(f"{parent} is not a folder; choose another {option('out')}.")
    if not _takes_files(parent):
        raise UsageError(f"Cannot write to {parent}; choose another {option('out')}.")


def _takes_files(folder: Path) -> bool:
    """Something can be made in this folder. It is tried: the rights of a folder in /proc, or of one on a read-only
    disk, do not tell."""
    try:
        Path(tempfile.mkdtemp(prefix=".flegel-", dir=folder)).rmdir()
    except OSError:
        return False
    return True


def save(result: Result, folder: str | os.PathLike[str], model: bool = True) -> Path:
    """Write model, result and trace; sets `result.model`. Without `model`, only what a report and a replay need."""
    path = Path(folder)
    check_target(path)
    scratch = path.absolute().with_name(f".{path.name}.{os.getpid()}.part")
    before = result.model
    result.model = str(path) if model else before
    try:
        scratch.mkdir(parents=True)
        for name, content in _files(result) if model else _record(result):
            _write(scratch / name, content)
        _flush_folder(scratch)
        if path.exists():
            path.rmdir()
        scratch.rename(path)
        _flush_folder(path.absolute().parent)
    except OSError as error:
        result.model = before
        shutil.rmtree(scratch, ignore_errors=True)
        raise StorageError(f"Could not save to {path}: {error.strerror or error}; nothing was written there.") from None
    except BaseException:
        result.model = before
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return path


def save_or_rescue(result: Result, folder: str | os.PathLike[str], model: bool = True, job: str = "") -> Path:
    """`save`; where that fails, to another place, which the error names: training may have taken days. `job` names that
    place; that of the folder by default."""
    try:
        return save(result, folder, model)
    except StorageError as error:
        for place in (Path.home() / ".local" / "share" / "flegel", Path(tempfile.gettempdir()), Path("/dev/shm")):
            rescue = place / "rescued" / f"{job or Path(folder).name}-{os.getpid()}"
            try:
                save(result, rescue, model)
            except (StorageError, UsageError, OSError):
                continue
            reason = str(error).partition("; nothing was written")[0]
            raise StorageError(f"{reason}; the result was saved to {rescue} instead.") from None
        raise


def _files(result: Result) -> Iterator[tuple[str, bytes]]:
    """All files of a saved model, made one after the other: arrays, manifest, files of the class, and the record of the
    job."""
    arrays = dict(zip(pytree.names(result.parameter), pytree.flatten(result.parameter), strict=True))
    if result.state is not None:
        arrays["__state__"] = result.state
    if result.scaling is not None:
        arrays["__shift__"], arrays["__factor__"] = result.scaling
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    yield "model.npz", buffer.getvalue()
    manifest = ModelManifest(
        FORMAT,
        in_plain(reference(result.algorithm)),
        form_of(result.parameter),
        result.dataset,
        result.objective,
        result.classes,
        result.state is not None,
        result.treatment,
    )
    yield "model.json", msgspec.json.format(msgspec.json.encode(manifest))
    yield from hook(result.algorithm, ModelHooks.model_files)(pytree.present(result.parameter)).items()
    yield from _record(result)


def _record(result: Result) -> Iterator[tuple[str, bytes]]:
    yield "result.json", json.dumps(result.to_json(), indent=1).encode()
    yield "trace.msgpack", b"".join(msgpack.packb(row, use_bin_type=True) for row in result.rows)


def read_trace(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a saved trace."""
    return read_records(Path(folder) / "trace.msgpack")


def read_figures(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """The JSON of a saved result, from its folder or from a file alone, and the rows of its trace where there is a
    folder. Raises `StorageError` for what is no result, `UsageError` where nothing is there."""
    folder = path if path.is_dir() else None
    file = path / "result.json" if folder else path
    try:
        result = read_json(file)
        rows = read_trace(folder) if folder else None
    except OSError as error:
        kind = UsageError if isinstance(error, FileNotFoundError | NotADirectoryError) else StorageError
        raise kind(f"Could not read {error.filename or file}: {error.strerror or error}.") from None
    except StorageError as error:
        raise StorageError(f"{file} is no result of Flegel: {error}") from None
    if missing := {"algorithm", "trace", "worker", "dataset"} - result.keys():
        raise StorageError(f"{file} is no result of Flegel: it lacks {', '.join(sorted(missing))}.")
    return result, rows


def write_json(result: Result, target: str) -> None:
    """Write the result as JSON into a file, in one step (`--json FILE`)."""
    path = Path(target)
    scratch = path.absolute().with_name(f".{path.name}.{os.getpid()}.part")
    content = (json.dumps(result.to_json(), indent=1) + "\n").encode()
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe or a device
            return
        _write(scratch, content)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"Could not write {path}: {error.strerror or error}.") from None


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(
    folder: str | os.PathLike[str],
    *,
    algorithm: Algorithm | type[Algorithm] | None = None,
    trust_code: bool = False,
) -> Model:
    """A saved model. A user's own class runs only when `trust_code` is given, or comes in as `algorithm`, as the class
    or as one with its hyper-parameters."""
    path = Path(folder)
    if path.name in ("model.json", "model.npz") and path.is_file():
        path = path.parent
    if not (path / "model.json").exists():
        if not path.exists():
            otherwise = "; give the folder that the job was saved to."
            beside = [str(each) for each in sorted(path.parent.glob("*")) if (each / "model.json").exists()]
            raise UsageError(f"There is no folder {path}{nearest(str(path), beside, otherwise)}")
        raise UsageError(f"{path} holds no saved model (there is no model.json in it).")
    try:
        manifest = read_manifest(path)
        fields = manifest.parameter.fields or ("value",)
        state = ("__state__",) if manifest.has_state else ()
        arrays = read_npz(path / "model.npz", (*fields, *state), ("__shift__", "__factor__"))
    except OSError as error:
        raise StorageError(f"The model in {path} is damaged: {error.strerror or error}.") from None
    except StorageError as error:
        raise StorageError(f"The model in {path} is damaged: {error}") from None
    _check_numbers(path, manifest, arrays)
    if algorithm is None and (manifest.algorithm.builtin or trust_code):
        with damage_as(f"The model in {path} is damaged: {manifest.algorithm.name[:80]} cannot be made of it"):
            algorithm = _made(path, manifest, trust_code)
    elif isinstance(algorithm, type):
        algorithm = with_hyper(algorithm, manifest.algorithm)
    return Model(manifest, arrays, algorithm)


_manifests = msgspec.json.Decoder(ModelManifest)
"""Made here, once: msgspec crashes where two threads decode a record with records in it for the first time."""


def read_manifest(path: Path) -> ModelManifest:
    """Read model.json of a saved result and check what it says; `StorageError` where that cannot be."""
    content = read_regular(path / "model.json", MAX_DOCUMENT_BYTES)
    with damage_as("model.json cannot be read"):
        manifest = _manifests.decode(content)
    if manifest.format != FORMAT:
        raise StorageError(f"it has format {manifest.format}; this version reads {FORMAT}.")
    columns = manifest.dataset.get("columns")
    if not isinstance(columns, int) or isinstance(columns, bool) or columns < 1:
        raise StorageError("model.json does not say how many columns its data had.")
    names = manifest.parameter.fields
    if len({normalize("NFKC", name) for name in names}) != len(names) or any(name.startswith("_") for name in names):
        raise StorageError("model.json names fields of θ that cannot be.")
    for name in (manifest.parameter.name, *names):
        if not name.isidentifier() or iskeyword(name) or len(name) > MAX_NAME:
            raise StorageError("model.json has a name in θ that cannot be.")
    return manifest


def _check_numbers(path: Path, manifest: ModelManifest, arrays: dict[str, Array]) -> None:
    """θ is finite, as it was when it was saved; scaling fits the columns."""
    for name in (*(manifest.parameter.fields or ("value",)), "__shift__", "__factor__"):
        if name in arrays and not np.isfinite(arrays[name]).all():
            raise StorageError(f"The model in {path} is damaged: {name} holds numbers that are not finite.")
    columns = int(manifest.dataset["columns"])
    scaling = [arrays[name] for name in ("__shift__", "__factor__") if name in arrays]
    if scaling and (len(scaling) != 2 or any(a.shape not in ((), (1,), (columns,)) for a in scaling)):
        raise StorageError(f"The model in {path} is damaged: its scaling does not fit {columns} columns.")


def _made(path: Path, manifest: ModelManifest, trusted: bool) -> Algorithm:
    try:
        return instantiate(manifest.algorithm, Consent.TRUSTED if trusted else None)
    except (ImportError, AttributeError) as error:
        name = manifest.algorithm.name
        raise StorageError(f"The model in {path} needs {name}, which cannot be loaded: {error}.") from error
