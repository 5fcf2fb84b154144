"""Flexible barriers inside PyTorch's data-parallel training, with real ranks over gloo."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.library("torch")

from bench.chaos.healing import not_fenced
from flegel.configuration.active import active
from flegel.errors import FlegelError, UsageError
from flegel.runtime import clock
from flegel.torch import FlexibleDDP
from flegel.torch.flexible import iteration
from flegel.torch.flexible.barrier import PooledBarrier
from flegel.torch.flexible.ddp import _alike
from flegel.torch.flexible.pace import REPORT_FIELDS, RankReport
from flegel.torch.flexible.watchdog import Watchdog

RANKS = Path(__file__).with_name("flexible_ranks.py")
ROOT = Path(__file__).resolve().parents[3]


PATIENT = {"FLEGEL_SETTINGS": "liveness.rank_silence_seconds=60"}
"""A busy machine may hold a rank up for long, where the test is not about one that is lost."""


def launch(case: str, folder: Path, ranks: int, options: dict[str, Any], kind: str = "") -> tuple[list[int], list[str]]:
    """Exit codes of the ranks, and what each wrote to its standard error. `kind`: of the loss of a rank."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(RANKS), case, str(folder), json.dumps(options), kind, str(ranks)]
    paths |= {"OMP_NUM_THREADS": "1", **({} if kind else PATIENT)}
    subprocess.run(command, env={**os.environ, **paths}, timeout=600, check=True)
    told = [(folder / f"errors-{rank}").read_text() for rank in range(ranks)]
    return json.loads((folder / "codes.json").read_text()), told


def play(case: str, folder: Path, ranks: int = 2, **options: Any) -> dict[str, Any]:
    codes, told = launch(case, folder, ranks, options)
    assert codes == [0] * ranks, told
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_every_index_once_and_the_same_parameters_everywhere(tmp_path: Path, workers: int) -> None:
    found = play("epochs", tmp_path, 3, workers=workers)
    for epoch in range(2):
        assert sorted(i for rank in found["seen"] for i in rank[epoch]) == list(range(1003))
    assert all(parameters == found["parameters"][0] for parameters in found["parameters"]), "bit for bit"
    assert found["samples"] == 2 * 1003
    assert found["barriers"] < 2 * 1003 // 8, "not every micro-batch was a barrier"
    assert found["rate"] == pytest.approx(0.05 * 0.999 ** found["barriers"]), "the schedule stepped at barriers"


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.0001}], ids=["one bucket", "buckets"])
def test_the_gradient_is_the_mean_over_the_samples_of_all_ranks(tmp_path: Path, options: dict[str, Any]) -> None:
    found = play("mean", tmp_path, **options)
    assert found["worst"] < 1e-6
    assert found["counts"][0] > found["counts"][1], "it made more micro-batches"


def test_a_forward_pass_counts_if_it_is_derived_in_whatever_mode(tmp_path: Path) -> None:
    for kind, found in play("evaluated", tmp_path).items():
        assert max(found["worst"]) < 1e-5, f"{kind}: the gradient is the mean over the samples that were trained"
        assert found["samples"] == found["trained"], f"{kind}: an iteration of two micro-batches counts as its first"


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    iteration.running.clear()
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("gradients", [False, True], ids=["without gradients", "in eval mode"])
def test_evaluations_longer_than_the_training_take_none_of_its_time(
    monkeypatch: pytest.MonkeyPatch, gradients: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])

    class Timed(torch.nn.Linear):  # type: ignore[name-defined,misc]
        def forward(self, x: Any) -> Any:
            now[0] += 1.0 if self.training else 10.0
            return super().forward(x)

    model = FlexibleDDP(Timed(3, 1), endless=True)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))

    def evaluate() -> Any:
        model.eval()
        with contextlib.nullcontext() if gradients else torch.no_grad():
            output: Any = model(torch.ones(2, 3))
        model.train()
        return output

    seconds, old = [], torch.zeros(())
    for _ in range(6):
        evaluate()
        loss = model(torch.ones(4, 3)).sum()
        evaluate()
        loss.backward()
        evaluate()
        now[0] += 3.0
        optimizer.step()
        old = evaluate()
        seconds.append(model.barrier.reports[0].seconds)
    assert seconds == [1.0] * 6, "a forward pass"
    if gradients:
        now[0] += 1.0
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        opened = model._timings.opened
        old.sum().backward()
        assert model._timings.opened == opened, "the interval in which it was made has ended"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("compress", ["none", "int8"])
def test_whoever_waits_for_other_ranks_is_watched(monkeypatch: pytest.MonkeyPatch, compress: str) -> None:
    """Also where buffers are averaged and gradients are summed by a hook: a rank that freezes there would be waited for
    without an end."""
    model = FlexibleDDP(
        torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), endless=True, compress=compress
    )
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    plain, watched = torch.distributed.all_reduce, []

    def all_reduce(*given: Any, **named: Any) -> Any:
        watched.append(model.watchdog.is_waiting)
        return plain(*given, **named)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        assert not model.watchdog.is_waiting
    assert len(watched) == (3 if compress == "none" else 6) and all(watched)


def test_an_evaluation_on_one_rank_takes_no_part_in_the_epoch(tmp_path: Path) -> None:
    found = play("evaluated in epochs", tmp_path)
    for epoch in range(2):
        assert sorted(i for rank in found["seen"] for i in rank[epoch]) == list(range(611))
    assert found["parameters"][0] == found["parameters"][1] and found["samples"] == 2 * 611


def test_outputs_whose_backward_pass_cannot_be_seen_are_refused(tmp_path: Path) -> None:
    said = play("unseen", tmp_path)["said"]
    assert len(said) == 2 and all("no tensor in the outputs of Hidden" in text for text in said)


def test_two_backward_passes_over_the_first_forward_pass_are_refused(tmp_path: Path) -> None:
    assert all("call backward once" in text for text in play("derived twice", tmp_path)["said"])


def test_without_a_flexible_sampler_it_is_plain_data_parallel_training_and_says_so(tmp_path: Path) -> None:
    found = play("static", tmp_path)
    assert found["barriers"] == 5 and len(found["said"]) == 1 and "FlexibleSampler" in found["said"][0]
    assert found["mine"] == pytest.approx(found["plain"], abs=1e-6)


def test_running_statistics_a_scaler_and_groups(tmp_path: Path) -> None:
    found = play("buffers", tmp_path)
    assert found["statistics"][0] == found["statistics"][1]
    assert found["parameters"][0] == found["parameters"][1]


def test_parameters_that_the_last_micro_batch_did_not_use_have_the_gradient_of_those_before(tmp_path: Path) -> None:
    found = play("unused", tmp_path)
    assert found["parameters"][0] == found["parameters"][1]
    assert max(found["worst"]) < 1e-6


def test_parameters_without_a_gradient_are_told_at_once(tmp_path: Path) -> None:
    found = play("unused untold", tmp_path)
    assert found["barriers"] == 1
    assert all("2 parameters got no gradient" in said and "find_unused_parameters" in said for said in found["said"])


def test_a_static_graph_is_recorded_with_the_first_barrier_or_not_needed(tmp_path: Path) -> None:
    found = play("static grouped", tmp_path)
    assert "make the first step without no_sync()" in found["said"]
    assert found["barriers"] == 2, "local steps send nothing in backward passes"


def test_ranks_that_heal_need_no_static_graph() -> None:
    """PyTorch's own messages are not used, and its record of the graph ended with an assertion."""
    from flegel.torch.flexible.ddp import _options_of_ddp

    options = {"static_graph": True, "process_group": object()}
    module = torch.nn.Linear(1, 1)
    assert _options_of_ddp(module, (), options, sends=True)["static_graph"]
    assert not _options_of_ddp(module, (), options, sends=False)["static_graph"]


def test_batches_without_samples_count_as_none(tmp_path: Path) -> None:
    found = play("empty", tmp_path)
    assert found["worst"] < 1e-6 and found["barriers"] == 4 and found["parameters"][0] == found["parameters"][1]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_generator_and_its_discriminator_share_a_sampler_and_their_barriers(tmp_path: Path, workers: int) -> None:
    found = play("adversarial", tmp_path, workers=workers)
    for epoch in range(2):
        assert sorted(i for rank in found["seen"] for i in rank[epoch]) == list(range(611))
    assert found["parameters"][0] == found["parameters"][1]
    assert found["barriers"][0] == found["barriers"][1] < 2 * 611 // 8
    assert found["samples"] == [2 * 611, 2 * 611]
    assert found["worst"] < 1e-6, "the first iteration is that of one process with the samples of all ranks"


def test_an_epoch_of_a_few_batches_is_trained_to_its_end(tmp_path: Path) -> None:
    for count, found in play("small", tmp_path).items():
        for epoch in range(3):
            assert sorted(i for rank in found["seen"] for i in rank[epoch]) == list(range(int(count)))
        assert found["parameters"][0] == found["parameters"][1]
        assert found["state"]["finished"] and found["state"]["trained"] == [[0, int(count)]]


@pytest.mark.parametrize("told", [True, False], ids=["no_sync", "nothing said"])
def test_gradients_of_several_batches_are_accumulated_for_two_optimizers(tmp_path: Path, told: bool) -> None:
    found = play("accumulated", tmp_path, told=told)
    assert sorted(i for rank in found["seen"] for i in rank[0]) == list(range(611))
    assert found["parameters"][0] == found["parameters"][1]
    assert 2 < found["barriers"] < 2 * 611 // 24
    assert found["worst"] < 1e-6


@pytest.mark.parametrize("anew", [True, False], ids=["counted anew", "counted on"])
def test_an_epoch_that_ends_within_a_group_of_batches_on_one_rank_only(tmp_path: Path, anew: bool) -> None:
    """No rank sends more messages than another, whether or not the script counts batches anew in each epoch."""
    found = play("incomplete", tmp_path, anew=anew)
    for epoch in range(4):
        assert sorted(i for rank in found["seen"] for i in rank[epoch]) == list(range(65))
    assert found["parameters"][0] == found["parameters"][1]
    assert found["barriers"] >= 4
    assert found["clipped"][0] == found["clipped"][1] and min(found["clipped"][0]) > 0.0


def test_leaving_an_epoch_early(tmp_path: Path) -> None:
    found = play("left early", tmp_path, alike=True)
    assert found["said"] == ["", ""] and found["barriers"] == 15
    assert found["parameters"][0] == found["parameters"][1]
    (tmp_path / "meet").unlink()
    said = play("left early", tmp_path, alike=False)["said"]
    assert said[0] == said[1] and "different epochs" in said[0] and "model.barriers" in said[0]


def test_ranks_leave_together_and_say_once_what_they_change(tmp_path: Path) -> None:
    found = play("stopped", tmp_path)
    (clock, samples, _), other = found["left"][0], found["left"][1]
    assert found["left"][0] == other, "at the same barriers, although the clock of one rank is an hour ahead"
    assert clock[0] < samples[0] and samples[1] >= 4000
    larger = [text for text in found["told"][0] if "times the samples" in text]
    assert len(larger) == 1 and "Adam" in larger[0] and "'sqrt'" in larger[0]
    assert all(sum("not finite" in text for text in told) == 1 for told in found["told"])


@pytest.mark.parametrize(("own", "expected"), [((1, 2, 3, 4, 5), 0), ((1, 2), 0), ((1, 2, 3, 5), 1)])
def test_a_frozen_rank_that_missed_a_barrier_and_trains_on_is_noticed(own: tuple[int, ...], expected: int) -> None:
    """At 2.5 it is frozen, at 4.5 woken; with a part sent before, it may be in a barrier that others pass meanwhile."""
    others = [["barrier", float(number), number] for number in range(1, 6)]
    frozen = [["barrier", float(number) if number < 3 else 7.0, number] for number in own]
    fault = {"process": 1, "at": 2.5, "woken": 4.5}
    assert not_fenced([others, frozen], [0, 1], [fault]) == expected


@pytest.mark.processes
@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--workers", "1"], marks=pytest.mark.slow),
        ["--compress", "int8", "--width", "256"],
        pytest.param(["--compress", "int8", "--width", "256", "--local-steps", "8"], marks=pytest.mark.slow),
    ],
    ids=["in full", "with workers", "with 8 bits", "local steps with 8 bits"],
)
def test_ranks_that_are_killed_and_frozen_are_replaced_while_the_others_train(
    tmp_path: Path, options: list[str]
) -> None:
    out = tmp_path / "healing.json"
    command = [
        sys.executable, "-m", "bench.chaos.healing", "--ranks", "3", "--seconds", "14", "--every", "4",
        "--samples", "900", "--limit", "60", "--seed", "0", *options, "--out", str(out),
    ]  # fmt: skip
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert found["faults"] >= 2 and found["epochs"] >= 1
    assert not any(found[k] for k in ("unequal_barriers", "lost_samples", "repeated_samples", "hung", "errors"))
    assert found["ranks_at_end"] == 3, "those that were replaced train, and wait for no further fault"


def test_a_process_that_joins_is_let_in_once_all_ranks_are_connected_to_it() -> None:
    from types import SimpleNamespace

    from flegel.torch.flexible.healer import Healer
    from flegel.torch.flexible.joining import Meeting
    from flegel.torch.flexible.membership import Generation

    model: Any = SimpleNamespace(settle=lambda _: None)
    healer = Healer(model, Meeting("tcp://127.0.0.1:1", 2, "training", 2.0), 60.0)
    healer.log.generation = Generation(1, (1, 2))
    for generations, due in (((2, 2), True), ((2, 1), False), ((1, 1), False)):
        reports = [RankReport(generation=one, rate=0.1) for one in generations]
        healer.apply_barrier(SimpleNamespace(table=torch.tensor(reports)))
        assert healer._due == due, generations


def test_what_ends_the_thread_that_signs_is_raised_where_the_training_waits() -> None:
    from flegel.torch.flexible.agent import Agent
    from flegel.torch.flexible.membership import MembershipLimits

    store = torch.distributed.HashStore()
    store.add("flegel/heal/training/identities", 1)
    store.set("flegel/heal/training/alive/1", "7 join -1")  # of a version that says less
    agent = Agent(lambda: store, "training", MembershipLimits(ranks=2))
    with pytest.raises(FlegelError, match=r"Process 1 writes .* the same version"):
        agent.await_generation(0)


def test_others_are_told_while_a_rank_compiles() -> None:
    from types import SimpleNamespace

    from flegel.torch.flexible.healer import Healer
    from flegel.torch.flexible.joining import Meeting

    model: Any = SimpleNamespace(settle=lambda _: None)
    healer = Healer(model, Meeting("tcp://127.0.0.1:1", 2, "training", 2.0), 60.0)
    told: list[bool] = []
    healer._agent = SimpleNamespace(compiles=told.append, leave=lambda: None)  # type: ignore[assignment]
    torch.compile(lambda x: x + 1.0, backend="eager")(torch.zeros(2))
    healer._agent = None
    assert told == [True, False]


def test_the_state_of_a_wrapped_schedule_can_be_saved() -> None:
    import io

    from flegel.torch.flexible.ddp import Schedule

    class Model:
        stepped, samples_seen = True, 100

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plain = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    wrapped = Schedule(Model(), plain, None).wrap()
    assert wrapped is plain and isinstance(wrapped, torch.optim.lr_scheduler.StepLR)
    wrapped.step()
    assert wrapped.get_last_lr() == [0.5]
    file = io.BytesIO()
    torch.save(wrapped.state_dict(), file)
    file.seek(0)
    again = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.last_epoch == wrapped.last_epoch


@pytest.mark.parametrize("kind", ["freeze", "kill"])
def test_a_lost_rank_ends_the_others_with_a_sentence(tmp_path: Path, kind: str) -> None:
    codes, told = launch("lost", tmp_path, 3, {}, kind)
    assert 0 not in codes
    named = [re.search(r"rank (\d, )*2\b", text) for text in told[:2]]
    assert codes[:2] == [75, 75] and all(named), told


def test_a_step_that_the_scaler_leaves_out_stops_nothing(tmp_path: Path) -> None:
    found = play("skipped", tmp_path)
    assert found["scales"] == [4.0, 4.0, 4.0], "halved once"
    assert found["parameters"][0] == found["parameters"][1]


def test_modules_of_fully_sharded_training_are_refused(tmp_path: Path) -> None:
    assert "fully_shard" in play("refused", tmp_path)["said"]


def test_static_graphs_activation_checkpointing_and_autocast_train_as_one_process_does(tmp_path: Path) -> None:
    for kind, found in play("alike", tmp_path).items():
        assert found["parameters"][0] == found["parameters"][1], kind
        assert found["worst"] < (1e-2 if kind == "autocast" else 1e-6), kind
        assert found["barriers"] == 6


def test_equal_ranks_send_and_compute_what_those_of_plain_data_parallel_training_do(tmp_path: Path) -> None:
    found = play("counted", tmp_path)
    mine, plain = found["flexible"], found["ddp"]
    assert mine["parameters"][0] == plain["parameters"][0], "bit for bit"
    assert mine["messages"] == plain["messages"] > 0
    assert mine["values"] - plain["values"] == 3 * 2 * REPORT_FIELDS, "reports, in three steps of two ranks"
    views = {"aten::view", "aten::view_as", "aten::as_strided"}
    assert Counter(n for n in mine["large"] if n not in views) == Counter(n for n in plain["large"] if n not in views)
    assert mine["grads"] - plain["grads"] <= 4 * 2 * 2 * REPORT_FIELDS, "gradients lie in the buckets of both"


def test_most_steps_of_equal_ranks_are_those_of_plain_data_parallel_training(tmp_path: Path) -> None:
    found = play("silent", tmp_path)
    calls = found["calls"]
    assert calls["FlexibleDDP"] - calls["DistributedDataParallel"] < 75, "Python's calls of a step"
    assert found["parameters"]["FlexibleDDP"] == found["parameters"]["DistributedDataParallel"], "bit for bit"
    assert max(found["worst"].values()) < 1e-5, found["worst"]
    assert found["left"][0] == found["left"][1]
    assert found["barriers"] == 72 + 100 and found["samples"] == found["seen"]
    assert found["reported"] <= 50, "what ends a run of silent barriers, and eight after it"


def test_a_state_saved_between_two_reports_says_what_was_trained(tmp_path: Path) -> None:
    found = play("saved in a run", tmp_path)
    assert found["wrong"] == 0 and found["silent"] > found["barriers"] / 2
    assert sorted(i for rank in found["seen"] for i in rank) == list(range(3000))


def test_parameters_that_are_frozen_or_released_after_wrapping_are_told_at_once(tmp_path: Path) -> None:
    for said in play("frozen", tmp_path)["said"]:
        assert "were frozen (requires_grad=False) after" in said[0] and "were frozen when" in said[1] and not said[2]


def test_gradients_of_8_bits_train_alike_on_all_ranks(tmp_path: Path) -> None:
    found = play("compressed", tmp_path)
    assert found["int8"]["digests"][0] == found["int8"]["digests"][1]
    assert found["int8"]["loss"] == pytest.approx(found["none"]["loss"], rel=0.2)


@pytest.mark.slow
def test_a_compiled_module_inside_trains_alike_on_all_ranks(tmp_path: Path) -> None:
    parameters = play("compiled", tmp_path)["parameters"]
    assert parameters[0] == parameters[1]


@pytest.mark.slow
def test_after_a_restart_the_rest_of_the_epoch_is_trained_exactly_once(tmp_path: Path) -> None:
    script = Path(__file__).with_name("elastic_script.py")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
        str(script), str(tmp_path),
    ]  # fmt: skip
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    paths["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or gloo finds the addresses of the first life
    ended = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    kept = json.loads((tmp_path / "snapshot.json").read_text())["barriers"]
    lines = [line.split() for log in tmp_path.glob("seen-*") for line in log.read_text().splitlines()]
    first = [int(index) for life, barrier, index in lines if life == "0" and int(barrier) < kept]
    second = [int(index) for life, _, index in lines if life == "1"]
    assert 0 < len(first) < 1003, "it was killed in the middle"
    assert sorted(first + second) == list(range(1003))


@pytest.mark.parametrize(("script", "says"), [("flexible_ddp", "epoch 0: loss"), ("flexible_amp", "epoch 0: ")])
def test_examples_of_the_documentation_run_under_torchrun(script: str, says: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command.append(f"docs/examples/{script}.py")
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "EPOCHS": "1", **PATIENT}
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert says in ended.stdout


@pytest.mark.processes
def test_the_example_of_ranks_that_heal_runs_with_its_store() -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "EPOCHS": "1"}
    store = [sys.executable, "-m", "flegel", "ddp-store", "--port", "0"]
    with subprocess.Popen(store, cwd=ROOT, env=paths, stdout=subprocess.PIPE, text=True) as serving:
        try:
            address = serving.stdout.readline().split()[-1] if serving.stdout else ""
            command = [sys.executable, "docs/examples/healing_ddp.py", address, "2"]
            ranks = [
                subprocess.Popen(
                    command, cwd=ROOT, env=paths, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                for _ in range(2)
            ]
            told = [rank.communicate(timeout=600) for rank in ranks]
        finally:
            serving.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], told
    held_up = any("gave no sign of life" in said for _, said in told)  # by a busy machine: the other goes on alone
    assert held_up or sum("epoch 0: loss" in out and "2 ranks" in out for out, _ in told) == 1, "rank 0 says so"


@pytest.mark.parametrize(
    ("sign", "moves", "seconds", "sentence"),
    [
        ("1 -1 -1", False, 6.0, "rank 1 gave no sign of life for 6 s"),
        ("1 7 0", False, 6.0, ""),  # it had arrived; its network may be slow
        ("1 7 0", False, 16.0, "rank 1 gave no sign of life for 16 s"),
        ("1 -1 -1", True, 59.0, ""),
        ("1 -1 -1", True, 61.0, "rank 1 is alive, but did not arrive within 60 s"),
        ("1 -1 1", True, 11.0, "rank 1 waits at a barrier of another model"),
        ("1 7 0", True, 61.0, "all ranks arrived, but it did not end within 60 s"),
        ("1 ended -1", False, 1.0, "rank 1 has ended its training: leave a loop on all ranks at the same barrier"),
        ("1 ended -1 ValueError: x", False, 1.0, "rank 1 has failed (ValueError: x)"),
        ("1 stopped -1 rank 2 has ended", False, 1.0, "rank 2 has ended"),
    ],
)
def test_a_barrier_that_does_not_end_is_explained(
    monkeypatch: pytest.MonkeyPatch, sign: str, moves: bool, seconds: float, sentence: str
) -> None:
    """Rank 0 waits at barrier 7; the sign of life of rank 1 stays what it was, or moves on."""
    told: list[str] = []
    watchdog = Watchdog.__new__(Watchdog)
    watchdog._rank, watchdog._ranks, watchdog._timeout, watchdog._seen = 0, 2, 60.0, {}
    watchdog._number, watchdog._times = 0, active().liveness
    watchdog._store = torch.distributed.HashStore()
    monkeypatch.setattr(watchdog, "_end", told.append)
    for now in (0.0, seconds):
        watchdog._store.set("1", f"{int(now) if moves else ''}{sign}")
        monkeypatch.setattr("flegel.runtime.clock.now", lambda now=now: now)
        watchdog._look((7, 0.0))
    assert "".join(told).startswith(sentence) and bool(told) == bool(sentence)


def test_learning_rates_that_differ_between_ranks_are_refused() -> None:
    """A schedule that is not wrapped steps with every batch, and ranks make different numbers of them."""
    _alike([RankReport(rate=0.05), RankReport(rate=0.05 * (1.0 + 1e-6))])
    _alike([RankReport(), RankReport()])
    with pytest.raises(UsageError, match=r"rates of ranks differ \(0\.05, 0\.0495\).*model\.scheduler\(scheduler\)"):
        _alike([RankReport(rate=0.05), RankReport(rate=0.0495)])


def test_a_rank_without_samples_leaves_infinite_values_of_buffers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module, mask = torch.nn.Linear(1, 1), torch.tensor([0.0, -math.inf])
    module.register_buffer("mask", mask.clone())
    barrier = PooledBarrier.__new__(PooledBarrier)
    barrier._exchanging, barrier.group = contextlib.nullcontext, None
    sent: list[Any] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat, **_: sent.append(flat.add_(mask)))
    barrier.average_buffers(module, 0.0, 8.0)  # all samples are those of the other rank
    assert torch.equal(module.mask, mask) and len(sent) == 1
    barrier.average_buffers(module, 0.0, 0.0)
    assert torch.equal(module.mask, mask) and len(sent) == 1, "no rank has any"


def test_a_part_that_is_frozen_after_it_was_wrapped_stops_nothing() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    barrier = PooledBarrier.__new__(PooledBarrier)
    barrier._begin(module, torch.device("cpu"), 0, 1)
    barrier.weight, barrier.measuring = 2, True
    module[0].requires_grad_(False)
    barrier._watch_parameters()
    module(torch.ones(1, 2)).sum().backward()
    assert len(barrier._local_norms) == 2, "weight and bias of the part that is trained"
    assert module[1].bias.grad.tolist() == [2.0]
