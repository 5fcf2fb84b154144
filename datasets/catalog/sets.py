"""The registered data sets, one class each: those of the papers, a few more, and the generators.

Column counts exclude the label. Checksums are those of the publishers; None where none is published.
Never imports an algorithm: `suits` names them.
"""

from __future__ import annotations

from pathlib import Path

from flegel.datasets.catalog.entry import CatalogEntry, RemoteFile
from flegel.datasets.formats.cifar import CifarStream
from flegel.datasets.formats.concatenated import ConcatenatedSource
from flegel.datasets.formats.readers import open_files
from flegel.datasets.rows.columnar_cache import columnar
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source
from flegel.datasets.synthetic.copula import CopulaSource
from flegel.datasets.synthetic.generators import ArbiterPuf, Blobs, Images, Ratings
from flegel.errors import DataError

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_CC_BY = "CC BY 4.0 (UCI Machine Learning Repository)"
_GROUPLENS = "GroupLens: research use with citation, no redistribution without the same conditions, non-commercial"


class Higgs(CatalogEntry):
    name, title = "higgs", "HIGGS: collisions that make Higgs bosons, or not (Baldi, Sadowski, Whiteson 2014)"
    home, licence = "https://archive.ics.uci.edu/dataset/280/higgs", _CC_BY
    rows, columns, label = 11_000_000, 28, 0
    suits = ("kmeans", "fcm", "lr", "gmm")
    remotes = (RemoteFile(f"{_UCI}/00280/HIGGS.csv.gz", "HIGGS.csv.gz"),)
    files = ("HIGGS.parquet", "HIGGS.npy", "HIGGS.csv", "HIGGS.csv.gz")
    remark = "with marginals, correlations and class separation fitted to 20,474 real rows"

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return CopulaSource(cls.name, rows)


class Susy(CatalogEntry):
    name, title = "susy", "SUSY: collisions that make supersymmetric particles, or not (Baldi et al. 2014)"
    home, licence = "https://archive.ics.uci.edu/dataset/279/susy", _CC_BY
    rows, columns, label = 5_000_000, 18, 0
    suits = ("gmm", "kmeans", "lr")
    remotes = (RemoteFile(f"{_UCI}/00279/SUSY.csv.gz", "SUSY.csv.gz"),)
    files = ("SUSY.parquet", "SUSY.npy", "SUSY.csv", "SUSY.csv.gz")
    remark = "with approximate shapes of columns and fractions of classes, not fitted to real rows"

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return CopulaSource(cls.name, rows)


class Hepmass(CatalogEntry):
    name, title = (
        "hepmass",
        "HEPMASS: search for exotic particles of unknown mass, training part (MASS in the paper)",
    )
    home, licence = "https://archive.ics.uci.edu/dataset/347/hepmass", _CC_BY
    rows, columns, label = 7_000_000, 27, 0
    suits = ("kmeans", "fcm", "gmm", "lr")
    remotes = (RemoteFile(f"{_UCI}/00347/all_train.csv.gz", "all_train.csv.gz"),)
    files = ("all_train.csv", "all_train.csv.gz")
    remark = "with approximate shapes of columns and fractions of classes, not fitted to real rows"

    @classmethod
    def open_real(cls, path: Path, options: Options) -> Source:
        """Columns f0 … f26; the 28th, the assumed mass, is excluded as in the paper."""
        if options.columns is None:
            options = options._replace(columns=list(range(1, 28)))
        return super().open_real(path, options)

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return CopulaSource(cls.name, rows)


class Nbaiot(CatalogEntry):
    name, title = (
        "nbaiot",
        "N-BaIoT: traffic of nine devices, benign or under botnet attack (DET in the paper)",
    )
    home = "https://archive.ics.uci.edu/dataset/442/detection+of+iot+botnet+attacks+n+baiot"
    licence = _CC_BY
    rows, columns = 7_062_606, 115
    meaning = "attack (1) or benign (0), by file"
    suits = ("lr", "kmeans")
    remotes = (
        RemoteFile(
            "https://archive.ics.uci.edu/static/public/442/detection+of+iot+botnet+attacks+n+baiot.zip",
            "nbaiot.zip",
        ),
    )
    files = ("**/benign_traffic.csv", "**/benign_traffic.csv.gz")
    default_rows = 500_000
    advice = "the attack files are .rar archives inside the zip; unpack them in place"
    remark = "with marginals and correlations fitted to 1,196 real rows of one benign and three attack files"

    @classmethod
    def open_real(cls, path: Path, options: Options) -> Source:
        """All CSV files below the set's folder; one whose name begins with `benign` is benign."""
        folder = cls.folder()
        files = sorted([*folder.rglob("*.csv"), *folder.rglob("*.csv.gz")])
        files = [file for file in files if not file.name.startswith("demonstrate")]
        parts = [open_files([file], options._replace(label=None), str(file)) for file in files]
        return ConcatenatedSource(parts, cls.name, ["0" if file.name.startswith("benign") else "1" for file in files])

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return CopulaSource(cls.name, rows)


class Puf(CatalogEntry):
    name, title = (
        "puf",
        "Physical unclonable functions: challenges and responses of a 5-XOR arbiter PUF of 128 bits",
    )
    home = "https://archive.ics.uci.edu/dataset/463/physical+unclonable+functions"
    licence = _CC_BY
    rows, columns, label = 6_000_000, 128, 128
    suits = ("gmm", "lr")
    remotes = (
        RemoteFile("https://archive.ics.uci.edu/static/public/463/physical+unclonable+functions.zip", "puf.zip"),
    )
    files = ("**/5xor_128bit/train_*.csv*", "**/train_5xor_128dim.csv*", "puf.csv", "puf.csv.gz")
    default_rows = 500_000
    remark = "a simulation of the same circuit, which is what the real set is too"

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return ArbiterPuf(rows)


class _MovieLens(CatalogEntry):
    licence = _GROUPLENS
    suits = ("nmf",)
    unit = "users"
    ratings: int
    items: int

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        """As many ratings per user as in the real set."""
        fraction = rows / cls.rows
        return Ratings(cls.name, rows, cls.items, max(rows, round(cls.ratings * fraction)))


class Ml10m(_MovieLens):
    name, title = "ml10m", "MovieLens 10M: 10,000,054 ratings of movies by 69,878 users"
    home = "https://grouplens.org/datasets/movielens/10m/"
    rows, columns, items, ratings = 69_878, 10_677, 10_677, 10_000_054
    default_rows = 69_878
    remotes = (
        RemoteFile(
            "https://files.grouplens.org/datasets/movielens/ml-10m.zip",
            "ml-10m.zip",
            "md5:ce571fd55effeba0271552578f2648bd",
        ),
    )
    files = ("**/ratings.dat", "**/ratings.dat.gz")
    remark = "a low-rank model with log-normal users and popular items, about 143 ratings per user"


class Ml25m(_MovieLens):
    name, title = "ml25m", "MovieLens 25M: 25,000,095 ratings of movies by 162,541 users"
    home = "https://grouplens.org/datasets/movielens/25m/"
    rows, columns, items, ratings = 162_541, 59_047, 5_000, 20_000_000
    default_rows = 162_541
    remotes = (
        RemoteFile(
            "https://files.grouplens.org/datasets/movielens/ml-25m.zip",
            "ml-25m.zip",
            "md5:6b51fb2759a8657d3bfcbfc42b592ada",
        ),
    )
    files = ("**/ratings.csv", "**/ratings.csv.gz")
    remark = "a low-rank model cut to 5,000 items as in the paper, about 123 ratings per user"


class _Images(CatalogEntry):
    rows, columns = 60_000, 784
    meaning = "the digit or class, from the file of labels"
    suits = ("lr", "kmeans")
    default_rows = 60_000
    remark = "ten smooth shapes, shifted, dimmed and noisy"

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return Images(cls.name, rows)


def _idx_remotes(base: str, checksums: tuple[str, str, str, str]) -> tuple[RemoteFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        RemoteFile(f"{base}/{name}-ubyte.gz", f"{name}-ubyte.gz", f"md5:{checksum}")
        for name, checksum in zip(names, checksums, strict=True)
    )


class Mnist(_Images):
    name, title = "mnist", "MNIST: handwritten digits, 28 × 28 (LeCun, Cortes, Burges)"
    home, licence = "http://yann.lecun.com/exdb/mnist/", "CC BY-SA 3.0"
    remotes = _idx_remotes(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )
    files = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")


class FashionMnist(_Images):
    name, title = "fashion-mnist", "Fashion-MNIST: articles of clothing, 28 × 28 (Zalando Research)"
    home, licence = "https://github.com/zalandoresearch/fashion-mnist", "MIT"
    remotes = _idx_remotes(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )
    files = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")


class Cifar10(_Images):
    name, title = "cifar10", "CIFAR-10: photographs of ten kinds of things, 32 × 32 in colour (Krizhevsky)"
    home, licence = "https://www.cs.toronto.edu/~kriz/cifar.html", "none stated; research use with citation"
    rows, columns = 50_000, 3072
    meaning = "the class, from the record"
    default_rows = 50_000
    remotes = (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    )
    files = ("cifar-10-binary.tar.gz",)

    @classmethod
    def open_real(cls, path: Path, options: Options) -> Source:
        return columnar(CifarStream(path, options.dtype))

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return Images(cls.name, rows, side=32, channels=3)


class Syn(_Images):
    name, title = "syn", "SYN: 120,000 generated images of 28 × 28 with 10 labels, as in the paper"
    home, licence = "generated", "Apache-2.0"
    rows, default_rows, generated = 120_000, 120_000, True
    meaning = "the class"


class BlobsEntry(CatalogEntry):
    name, title = "blobs", "Ten round clusters in 16 columns; blobs:N has N points"
    home, licence = "generated", "Apache-2.0"
    rows, columns = 100_000, 16
    meaning = "the cluster"
    suits = ("kmeans", "gmm", "fcm")
    generated, default_rows = True, 100_000

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        return Blobs(rows)


class RatingsEntry(CatalogEntry):
    name, title = "ratings", "Ratings of a low-rank model with popular items; ratings:N has N ratings"
    home, licence = "generated", "Apache-2.0"
    rows, columns = 6_993, 2_818
    suits = ("nmf",)
    generated, default_rows, unit = True, 1_000_000, "ratings"

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        """`rows` is the number of ratings; users and items grow with it as in the MovieLens sets."""
        if rows < 100:
            raise DataError(f"ratings:{rows} is too small for a matrix of ratings; use at least ratings:100.")
        items = max(10, round(rows**0.575))
        return Ratings(cls.name, max(round(rows / 143), 4 * rows // items), items, rows)


ENTRIES: tuple[type[CatalogEntry], ...] = (
    Puf,
    Susy,
    Hepmass,
    Higgs,
    Nbaiot,
    Ml10m,
    Ml25m,
    Mnist,
    FashionMnist,
    Cifar10,
    Syn,
    BlobsEntry,
    RatingsEntry,
)
