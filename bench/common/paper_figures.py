"""Every figure and table of the five papers: what it shows, which program measures it here, and what differs.

Facts only: nothing is run or imported. `flegel bench list` prints it, `flegel bench run 004-fig7` runs one of them, and
`papers_page.py` writes docs/results/papers.md from it and from records. A figure with no program is a diagram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAPERS = {
    "000": "dSyncPS: delayed synchronization between server groups",
    "001": "Parameter server for distributed machine learning",
    "002": "PSP: synchronization predicted from measured speeds",
    "003": "Adaptive load balancing for parameter servers",
    "004": "FSP: flexible synchronous parallel training",
}
"""By the number of the seed."""


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table of a paper."""

    name: str
    """Paper and figure, such as 004-fig7."""
    shows: str
    """What it shows in the paper."""
    program: str = ""
    """File of bench/figures that measures it; empty for a diagram."""
    part: str = ""
    """The part of the program, for its `--parts`, where it measures several figures."""
    differs: str = ""
    """What is not as in the paper."""
    said: str = ""
    """What the paper's text says about it, in numbers."""
    page: str = ""
    """Page of docs/results with longer runs."""
    panels: str = ""
    """Letters of the parts of the figure that are measured, where the others are diagrams."""

    @property
    def paper(self) -> str:
        return self.name.partition("-")[0]

    @property
    def label(self) -> str:
        """As papers write it: Fig. 7, Table 2."""
        kind = self.name.partition("-")[2]
        if kind == "intro":
            return "Introduction"
        return f"Table {kind[5:]}" if kind.startswith("table") else f"Fig. {kind[3:]}"


def diagram(name: str, shows: str) -> PaperFigure:
    return PaperFigure(name, shows, differs="a diagram or a list: nothing is measured")


STRAGGLERS = "stragglers are workers slowed 8 times, because 32 ms for each 1,000 points is hundreds of times the work"
ONE_MACHINE = "one machine instead of eight slaves on a Gigabit switch"
SLICES = "beside it transfers of slices between processes in network namespaces"
NAMESPACES = (
    "transfers of slices between processes in network namespaces; beside it networks of that form are trained there "
    "on made-up images of 32×32, where there is PyTorch"
)
FIGURES = (
    diagram("000-fig1", "architecture: groups of servers, storage"),
    diagram("000-fig2", "workflow of a worker"),
    diagram("000-fig3", "modules of a server"),
    diagram("000-fig4", "modules of a worker"),
    diagram("000-fig5", "format of a message"),
    diagram("000-table1", "types of messages"),
    PaperFigure(
        "000-fig6",
        "accuracy after each local aggregation, LeNet on Fashion-MNIST, three servers with three workers each",
        "dsync",
        "accuracy",
        "groups are processes of one machine and the bucket is a folder; without PyTorch it is left out",
        "0.78 at the start, 0.9 within 500 s, 0.905 at the end on average",
        "sites",
    ),
    PaperFigure(
        "000-fig7",
        "accuracy after each global synchronization, the same runs",
        "dsync",
        "accuracy",
        "as 000-fig6; the curve holds one value for each synchronization",
        "as Fig. 6; with T = 1 half the time",
        "sites",
    ),
    PaperFigure(
        "000-fig8",
        "workers of each server over time, from 3/3/3 and from 1/1/8",
        "dsync",
        "balance",
        "virtual time; workers do not leave when they have converged",
        "both end in nearly equal numbers",
        "sites",
    ),
    PaperFigure(
        "000-fig9",
        "time of a local aggregation and of a global synchronization, 3 to 15 workers",
        "dsync",
        "scaling",
        "k-means; each worker sleeps 100 ms a pass, so that a lack of processors is not what is measured",
        "both grow slightly",
        "sites",
    ),
    diagram("001-fig1", "size of training data by year, of other authors"),
    diagram("001-fig2", "steps of training with a parameter server"),
    diagram("001-fig3", "ring of key ranges"),
    diagram("001-fig4", "replicas on the ring"),
    PaperFigure(
        "001-fig5",
        "accuracy and time against the number of servers (one worker) and of workers (one server)",
        "servers",
        "roles",
        "logistic regression by asp, on generated images where MNIST is not there; servers hold slices of one θ, so "
        f"their number does not change the accuracy; {SLICES}",
        "time falls with servers, with diminishing returns; time rises with workers",
        "servers",
    ),
    PaperFigure(
        "001-fig6",
        "time against the number of workers of one server",
        "servers",
        "roles",
        f"as 001-fig5; {SLICES}",
        "time grows almost in proportion to the workers",
        "servers",
    ),
    PaperFigure(
        "002-fig1",
        "schedule of stale synchronous training, threshold 1, speeds 1 : 2 : 3",
        "psp",
        "schedules",
        "utilization of the model on virtual time, without costs of messages",
        "workers are used 33.3, 66.7 and 100 %, together 66.7 %",
    ),
    PaperFigure(
        "002-fig2",
        "the same with threshold 5",
        "psp",
        "schedules",
        "as 002-fig1; the paper ends a round when the first worker has made six iterations",
        "100 % for the first round",
    ),
    PaperFigure(
        "002-fig3",
        "a worker becomes slower; threshold 2 no longer fits",
        "psp",
        "schedules",
        "as 002-fig1",
        "no number",
    ),
    PaperFigure(
        "002-fig4",
        "predicted synchronization, speeds 1 : 2 : 3",
        "psp",
        "schedules",
        "as 002-fig1",
        "six, three and two iterations; 100 %",
    ),
    PaperFigure(
        "002-table1",
        "time of VGG-11 on CIFAR-10 to 75 % accuracy",
        "psp",
        "vgg",
        "on processors an eighth of the kernels (a 16th at smoke) and a part of the images, generated ones where "
        "CIFAR-10 is not there: 75 % is reached so; all kernels take a GPU, which this machine may lack; 3 to 12 "
        "workers (3 at smoke), a barrier after each of 16 iterations of a pass as bsp; beside it races to a loss; "
        "needs PyTorch",
        "3 clients: bsp 4511 s, asp 4230, ssp 4133, psp 3756; 6 clients: 4225, 3846, 4033, 3419",
        "paper-figures",
    ),
    PaperFigure(
        "002-table2",
        "time of logistic regression on MNIST to 92 % accuracy",
        "psp",
        "lr",
        "generated images where MNIST is not there; 3 to 12 workers (3 at smoke), a barrier after each of 16 "
        "iterations of a pass as bsp; beside it races to a mean log loss of 0.1",
        "3 clients: bsp 221 s, asp 258, ssp 353, psp 204; 6 clients: 208, 231, 445, 197",
        "paper-figures",
    ),
    PaperFigure(
        "002-fig5", "loss of VGG-11 against time", "psp", "vgg", "as 002-table1", "15 % less loss", "paper-figures"
    ),
    PaperFigure(
        "002-fig6",
        "loss of logistic regression against time",
        "psp",
        "lr",
        "as 002-table2",
        "15 % less loss",
        "paper-figures",
    ),
    PaperFigure(
        "002-fig7",
        "use of processors, VGG-11",
        "psp",
        "vgg",
        "as 002-table1",
        "psp comes second to asp; 31 % better",
        "paper-figures",
    ),
    PaperFigure(
        "002-fig8",
        "use of processors, logistic regression",
        "psp",
        "lr",
        "as 002-table2",
        "psp comes second to asp; 31 % better",
        "paper-figures",
    ),
    diagram("003-fig1", "transfer of slices"),
    diagram("003-fig2", "measurement of a link by a forecast message"),
    diagram("003-fig3", "load distribution as points on lines"),
    diagram("003-table1", "hyper-parameters"),
    PaperFigure(
        "003-fig4",
        "images a minute of three schemes on AlexNet, ResNet-50 and MobileNet, twelve nodes",
        "servers",
        "schemes",
        f"{NAMESPACES}; models have a part of their size (1/10 at small), links do not",
        "over even slices: Elastic 1.23, 1.56, 1.14; Aware 1.32, 1.76, 2.68",
        "servers",
    ),
    PaperFigure(
        "003-fig5",
        "seconds of each round while links change",
        "servers",
        "changes",
        f"{NAMESPACES}; links change after some rounds, not after 300 s",
        "the curve of Aware lies below",
        "servers",
    ),
    PaperFigure(
        "003-fig6",
        "seconds of a round against the size of a slice, ResNet-50",
        "servers",
        "sizes",
        NAMESPACES,
        "flat from 1e5 to 3.16e5 parameters; the formula says 2.4e5",
        "servers",
    ),
    PaperFigure(
        "003-fig7",
        "cost of probes and of requests for a plan",
        "servers",
        "sensing",
        NAMESPACES,
        "2.12 %",
        "servers",
    ),
    PaperFigure(
        "004-intro",
        "k-means beside a second job, and with a worker that is revoked",
        "introduction",
        "",
        f"{ONE_MACHINE}; a replacement starts here in about a second, not in a minute; bsp is compared with fsp",
        "122 s alone, 1,050 s beside another job of one worker; up to 50 % longer where a worker is revoked",
        "paper-figures",
    ),
    diagram("004-fig1", "a barrier of BSP and of FSP"),
    PaperFigure(
        "004-table1",
        "algorithms and data sets",
        "data_sets",
        "",
        "generated sets of the same shape where the files are not there",
        "P and D of each set",
    ),
    PaperFigure(
        "004-fig2",
        "(b): objective against time and progress g against η are linear within a stage, k-means",
        "linearity",
        "",
        "fixed intervals on virtual time; (a) and (c) are diagrams",
        "an inflection at 1.8 s separates two linear stages; g falls linearly with η in both",
        "paper-figures",
        panels="b",
    ),
    diagram("004-fig3", "selection of moved data"),
    diagram("004-fig4", "architecture"),
    diagram("004-fig5", "hooks"),
    diagram("004-fig6", "central and semi-centralized coordination"),
    PaperFigure(
        "004-fig7",
        "time to the target with stragglers, six algorithms",
        "runtime_stragglers",
        "",
        f"{ONE_MACHINE}; {STRAGGLERS} of 1,000 points in compiled code; Natural is a second job of a quarter as many "
        "workers on the same machine; at smoke k-means only",
        "FSPV over BSPB 1.5 to 12 and 3.4 to 170, over BSPV 1.3 to 78, over FSPB 1.0 to 3.0",
        "models",
    ),
    PaperFigure(
        "004-fig8",
        "the same without stragglers",
        "runtime_even",
        "",
        f"{ONE_MACHINE}; beside it with a second job of as many workers, which slows all of ours alike (the paper's "
        "Natural makes stragglers and is in Fig. 7); at smoke k-means only",
        "FSPV 1.3 times faster on average",
        "models",
    ),
    PaperFigure(
        "004-fig9",
        "slower stragglers, and more of them",
        "skew",
        "",
        "the factor of slowness instead of τ",
        "BSP degrades with τ, FSP hardly; the gap narrows with more stragglers",
        "models",
    ),
    PaperFigure(
        "004-fig10",
        "synchronization cost of workers",
        "utilization",
        "",
        ONE_MACHINE,
        "no number in the text",
        "models",
    ),
    PaperFigure(
        "004-fig11",
        "migration (sync, async) and semi-centralized coordination",
        "optimizations",
        "",
        f"{ONE_MACHINE}; Natural is a second job on it; at smoke k-means only",
        "async saves up to 55.8 %, sync may cost 35.9 %, semi saves up to another 32.5 %",
        "migration",
    ),
    PaperFigure(
        "004-fig12",
        "passes and contribution of each worker, with and without migration",
        "passes",
        "",
        f"{ONE_MACHINE}; passes end within one of each other in jobs of 5 s, but not in jobs of few passes: points "
        "begin to move after two, and from the fourth on passes are about one apart at most (on virtual time)",
        "passes become equal, the summed contribution larger",
        "migration",
    ),
    PaperFigure(
        "004-fig13",
        "cost of each barrier, central and semi-centralized",
        "coordination",
        "",
        "Natural is a second job of a quarter as many workers on the same machine; at smoke k-means only. Own clocks "
        "save what late answers cost: nothing where slow workers answer a signal at once, because they compute slowly "
        "or pause for 4 ms or less, and 33 to 65 % with pauses of 8 to 64 ms (virtual time), 53 to 56 % with 32 ms "
        "(real workers). Compiled loops look at the signal after each point; the paper does not say how soon its "
        "workers answer",
        "KMs: 15.2 of 26.8 s saved are the barriers'; costs fall from 48.4 to 38.3 s elsewhere",
        "models",
    ),
    PaperFigure(
        "004-fig14",
        "objective against time, also of ASP",
        "convergence",
        "",
        "our asp keeps statistics by owner and did not diverge; with θ from the last report alone and 32 batches it "
        "ends 7 % above, and gets worse between 8 and 32 passes",
        "FSPV and BSPV are monotone; ASP diverges for k-means",
        "models",
    ),
    PaperFigure(
        "004-fig15",
        "time against fixed intervals, and the adjuster's",
        "intervals",
        "",
        f"{ONE_MACHINE}; {STRAGGLERS}",
        "up to 50 % less time; over BSPV 0.633 and 0.250 (KMs), 0.849 and 0.226 (NMF)",
        "models",
    ),
    PaperFigure(
        "004-fig16a",
        "4 to 32 workers",
        "scaling",
        "",
        "one worker to as many as there are cores",
        "nearly linear",
        "suite",
    ),
    PaperFigure(
        "004-fig16b",
        "one GPU and four processors",
        "gpu",
        "",
        "needs a GPU; without one it is left out",
        "the optimizations save up to 42 %",
        "networks",
    ),
    PaperFigure(
        "004-table2",
        "speed of migration under limited bandwidth",
        "bandwidth",
        "",
        "network namespaces behind token buckets, which need root; Natural is a second job on the same machine",
        "Injected 116.75 / 99.72 / 98.80 MB/s, limited 59.38 / 57.57 / 56.89; Natural 108.13 / 71.51 / 69.22, limited "
        "59.69 / 55.53 / 54.74 (iPerf, Only, Normal)",
        "migration",
    ),
)  # fmt: skip
BY_NAME = {figure.name: figure for figure in FIGURES}


def figure_named(name: str) -> PaperFigure | None:
    """By paper and figure, also with the letter of a panel: 004-fig2b is a part of 004-fig2."""
    whole = BY_NAME.get(name)
    if whole is None and (whole := BY_NAME.get(name.rstrip("abcdef"))) is not None:
        panel = name.removeprefix(whole.name)
        if len(panel) > 1:
            return None
        if whole.panels and panel not in whole.panels:
            return diagram(name, f"{whole.name} measures ({', '.join(whole.panels)})")
    return whole


def measured_by(program: str, parts: Sequence[str] = ()) -> list[PaperFigure]:
    """The figures that a program measures, or that these parts of it do."""
    return [f for f in FIGURES if f.program == program and (not parts or f.part in parts)]
