"""Networks beside plain PyTorch: the same steps, whoever computes the gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.library("torch")

import torch_modules as modules

import flegel.torch as networks
from flegel import LocalCluster, run
from flegel.algorithm import Sample
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError
from flegel.runtime.backends.registry import choose
from flegel.torch import flat, records
from flegel.torch.micro_batches import MicroBatches
from flegel.torch.optimizers import OPTIMIZERS, StepSettings, rate_factor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(256, 8)).astype(np.float32)
Y = ((X[:, 0] > 0) + 1.0 * (X[:, 1] > 0.3)).astype(np.float64)
SAMPLE = Sample(X, Y, len(X), 8)


def started(network: Any) -> Any:
    network.validate(SAMPLE)
    return network.initParameter(SAMPLE, np.random.default_rng(0))


def kernel_of(network: Any, theta: Any) -> tuple[Any, Any]:
    shard = make_shard(X, Y, network.initState(len(X), 8, RNG))
    sent = type(theta)._make([*theta])
    empty = network.initAggregator(SAMPLE, theta)
    return choose("cpu", network.kernels.backend).build(network, shard, sent, empty, False), shard


# -- optimizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "twin", "options"),
    [
        ("sgd", torch.optim.SGD, {"weight_decay": 0.01}),
        ("momentum", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
        ("nesterov", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        ("adam", torch.optim.Adam, {"weight_decay": 0.01}),
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.1}),
        ("rmsprop", torch.optim.RMSprop, {"alpha": 0.999}),
        ("adagrad", torch.optim.Adagrad, {"eps": 1e-8}),
    ],
)
def test_optimizers_take_the_steps_of_torch(name: str, twin: Any, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    weights = rng.normal(size=40).astype(np.float32)
    state = np.zeros((OPTIMIZERS[name].rows, 40), np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = twin([theirs], lr=0.01, **options)
    for step in range(1, 101):
        gradient = rng.normal(size=40).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        settings = StepSettings(0.01, step, weight_decay=options.get("weight_decay", 0.0))
        OPTIMIZERS[name].update(weights, gradient, state, settings)
    np.testing.assert_allclose(weights, theirs.detach().numpy(), atol=1e-6)


def test_schedules_begin_and_end_where_they_should() -> None:
    assert rate_factor("constant", 7, 10, 0) == 1.0
    assert rate_factor("cosine", 10, 10, 0) == pytest.approx(0.0)
    assert rate_factor("linear", 5, 10, 0) == pytest.approx(0.5)
    assert rate_factor("step", 4, 10, 0) == pytest.approx(0.1)
    assert 0 < rate_factor("cosine", 0, 10, 2) < 0.05 < rate_factor("cosine", 2, 10, 2)


# -- the kernel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [modules.Classifier, modules.Half], ids=lambda m: m.__name__)
def test_the_kernel_sums_gradients_over_samples(module: Any) -> None:
    network = networks.model(module, modules.smooth_loss)
    theta = started(network)
    kernel, shard = kernel_of(network, theta)
    assert kernel.run(shard, 0, len(X), 0, new_flag()) == len(X)
    gradient, _, sums, _ = kernel.statistics()
    plain = module()
    flat.set_weights(plain, theta.weights)
    loss = modules.smooth_loss(plain(torch.from_numpy(X)), torch.from_numpy(Y).long())
    loss.backward()
    mean = np.concatenate([p.grad.float().numpy().reshape(-1) for p in plain.parameters()])
    close = 1e-5 if module is modules.Classifier else 2e-2
    np.testing.assert_allclose(gradient / len(X), mean, atol=close)
    assert gradient.dtype == np.float32 and sums[1] == len(X)
    assert sums[0] / len(X) == pytest.approx(loss.item(), rel=1e-3)


def test_the_kernel_stops_between_micro_batches() -> None:
    network = networks.model(modules.Classifier, micro_batch=16)
    kernel, shard = kernel_of(network, started(network))
    flag = new_flag()
    flag[0] = 1
    assert kernel.run(shard, 0, len(X), 0, flag) == 0
    assert kernel.run(shard, 10, 60, 0, new_flag()) == 60
    assert kernel.statistics()[2][1] == 50


def test_buffers_are_averaged_by_visits() -> None:
    network = networks.model(modules.Normalized, lr=0.01)
    theta = started(network)
    kernel, shard = kernel_of(network, theta)
    kernel.run(shard, 0, len(X), 0, new_flag())
    gradient, buffers, sums, spread = kernel.statistics()
    mean = buffers / sums[1]
    module = kernel._module
    np.testing.assert_allclose(mean, flat.buffers_of(module), rtol=1e-6)
    fresh = network.updateParameter(
        network.initAggregator(SAMPLE, theta)._make([gradient, buffers, sums, spread]), theta
    )
    np.testing.assert_allclose(fresh.buffers, mean, rtol=1e-5)
    assert not np.allclose(fresh.buffers, theta.buffers)


def test_local_steps_report_how_far_the_weights_went() -> None:
    network = networks.model(modules.Classifier, optimizer="sgd", lr=0.1, local=True, micro_batch=64)
    theta = started(network)
    kernel, shard = kernel_of(network, theta)
    plain = modules.Classifier()
    flat.set_weights(plain, theta.weights)
    kernel._sizes._size = 64
    kernel.run(shard, 0, len(X), 0, new_flag())
    fresh = network.updateParameter(network.initAggregator(SAMPLE, theta)._make(kernel.statistics()), theta)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for at in range(0, len(X), 64):
        optimizer.zero_grad()
        rows, labels = torch.from_numpy(X[at : at + 64]), torch.from_numpy(Y[at : at + 64]).long()
        torch.nn.functional.cross_entropy(plain(rows), labels).backward()
        optimizer.step()
    np.testing.assert_allclose(fresh.weights, flat.weights_of(plain, "float32"), atol=1e-5)


def test_micro_batches_take_a_tenth_of_an_interval_at_most() -> None:
    sizes = MicroBatches(256)
    for _ in range(20):
        sizes.add(sizes.size, sizes.size / 10_000)  # 10,000 samples a second
        sizes.add_round(0.1, stopped=True)
    assert sizes.size == 64  # 6.4 ms of 10 ms; 128 would be 12.8
    for _ in range(20):
        sizes.add(sizes.size, sizes.size / 10_000)
        sizes.add_round(10.0, stopped=True)
    assert sizes.size == 256
    assert sizes.too_large(256) and sizes.size == 128
    assert not sizes.too_large(1)


def test_micro_batches_are_no_shorter_than_pays_for_their_calls() -> None:
    """With 2 ms a call and 100 µs a sample, √(2 ms · 20 ms) = 6.3 ms and not 2 ms: 32 samples, in 5.2 ms."""
    sizes = MicroBatches(256)
    for _ in range(40):
        sizes.add(sizes.size, 2e-3 + sizes.size * 1e-4)
        sizes.add_round(0.02, stopped=True)
    assert sizes.size == 32
    for _ in range(40):
        sizes.add(sizes.size, 2e-3 + sizes.size * 1e-4)
        sizes.add_round(0.002, stopped=True)
    assert sizes.size == 16  # 20 would take as long as their call
    sizes.add_round(0.02, stopped=False)  # a round of so many points, which no signal ends
    for _ in range(8):
        sizes.add(sizes.size, 2e-3 + sizes.size * 1e-4)
    assert sizes.size == 256


def test_the_time_of_a_call_is_told_apart_from_that_of_its_samples() -> None:
    sizes = MicroBatches(256)
    assert sizes.call == 0.0
    for samples in (8, 24, 40, 8, 24, 40, 16, 40, 8):
        sizes.add(samples, 4e-3 + samples * 7e-5)
    assert sizes.call == pytest.approx(4e-3, rel=1e-6)
    sizes.add(64, 1.0)  # the first of a size prepares the library's plan
    assert sizes.call == pytest.approx(4e-3, rel=1e-6)


def test_abandoning_a_slow_micro_batch_would_bias_the_gradient_and_finishing_it_does_not() -> None:
    """Samples whose gradient is large take as long: leaving out what is not finished leaves out large ones."""
    rng = np.random.default_rng(1)
    kept, finished, counts = np.zeros(2), np.zeros(2), 4000
    for _ in range(counts):
        clock, costs = 0.0, rng.exponential(1.0, 40)
        for cost in costs:
            if clock >= 6.0:
                break
            clock += cost
            finished += cost, 1
            kept += (cost, 1) if clock < 6.0 else (0, 0)
    assert finished[0] / finished[1] == pytest.approx(1.0, abs=0.02)
    assert kept[0] / kept[1] < 0.9


# -- whole jobs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with LocalCluster(4) as made:
        yield made


def plain_training(network: Any, optimizer: Any, steps: int, options: dict[str, Any]) -> Any:
    theta = started(copy.copy(network))
    module = modules.Classifier()
    flat.set_weights(module, theta.weights)
    twin = optimizer(module.parameters(), **options)
    rows, labels = torch.from_numpy(X), torch.from_numpy(Y).long()
    for _ in range(steps):
        twin.zero_grad()
        torch.nn.functional.cross_entropy(module(rows), labels).backward()
        twin.step()
    return flat.weights_of(module, "float32")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "twin", "options"),
    [
        ("sgd", torch.optim.SGD, {"lr": 0.1}),
        ("momentum", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        ("adamw", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        ("NAdam", torch.optim.NAdam, {"lr": 0.01}),
    ],
)
@pytest.mark.parametrize(("workers", "close"), [(1, 1e-6), (2, 1e-5), (4, 1e-5)])
def test_full_batches_take_the_steps_of_plain_pytorch(
    cluster: Any, name: str, twin: Any, options: dict[str, Any], workers: int, close: float
) -> None:
    network = networks.model(
        modules.Classifier, optimizer=name, lr=options["lr"], epochs=20, weight_decay=options.get("weight_decay", 0.0)
    )
    expected = plain_training(network, twin, 20, options)
    result = run(network, (X, Y), workers=workers, sync="bsp", cluster=cluster)
    assert result.iterations == 20 and result.reason == "20 epochs are done"
    np.testing.assert_allclose(result.parameter.weights, expected, atol=close)


@pytest.mark.processes
@pytest.mark.parametrize("sync", ["bsp-mini", "psp", "fsp", "asp"])
def test_a_network_learns_under_every_model(cluster: Any, sync: str) -> None:
    network = networks.model(modules.Classifier, lr=0.05, epochs=60)  # psp makes few updates a pass on a busy machine
    result = run(network, (X, Y), workers=2, sync=sync, cluster=cluster)
    assert result.metrics["accuracy"] > 0.75 and result.objective is not None and result.objective < 0.6
    assert float(np.mean(result.predict(X) == Y)) > 0.8
    again = result.module(torch.from_numpy(X)).argmax(1).numpy()
    np.testing.assert_array_equal(again, result.predict(X))
    weight = records.TrainingCourse(*result.parameter.course).noise.weight
    assert weight > 0 or sync == "asp"  # there an update may rest on one batch, which tells nothing of the noise


@pytest.mark.processes
def test_a_stopped_job_goes_on_with_the_state_of_its_optimizer(cluster: Any, tmp_path: Path) -> None:
    from flegel import resume

    def made(epochs: int) -> Any:
        return networks.model(modules.Classifier, optimizer="momentum", lr=0.05, epochs=epochs)

    whole = run(made(12), (X, Y), workers=2, sync="bsp", cluster=cluster)
    run(made(12), (X, Y), workers=2, sync="bsp", cluster=cluster, checkpoint=tmp_path / "c", max_iterations=5)
    rest = resume(tmp_path / "c", algorithm=made(12), data=(X, Y), cluster=cluster, max_iterations=None, exact=True)
    np.testing.assert_allclose(rest.parameter.weights, whole.parameter.weights, atol=1e-6)  # micro-batches may differ


@pytest.mark.processes
def test_a_model_is_saved_and_loaded(cluster: Any, tmp_path: Path) -> None:
    needs.library("safetensors")
    from flegel import load

    network = networks.model(modules.Classifier, lr=0.02, epochs=2, arguments={"hidden": 7})
    result = run(network, (X, Y), workers=1, sync="bsp", cluster=cluster, out=tmp_path / "model")
    with pytest.raises(UsageError, match="trust_code"):
        _ = load(tmp_path / "model").module
    again = load(tmp_path / "model", trust_code=True)
    np.testing.assert_array_equal(again.predict(X), result.predict(X))
    networks.save(result, tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").read_bytes() == (tmp_path / "model" / "model.safetensors").read_bytes()
    module = networks.load(modules.Classifier(7), tmp_path / "w.safetensors")
    np.testing.assert_array_equal(module(torch.from_numpy(X)).argmax(1).numpy(), result.predict(X))
    with pytest.raises(UsageError, match="do not fit Classifier"):
        networks.load(modules.Classifier(8), tmp_path / "w.safetensors")


# -- bad input ---------------------------------------------------------------------------------------------


def local_module() -> Any:
    class Inner(modules.Classifier):
        pass

    return Inner


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: networks.model(modules.Classifier()), "A finished module"),
        (lambda: networks.model(local_module()), "inside a function"),
        (lambda: networks.model(lambda: modules.Classifier()), "cannot be rebuilt in workers"),
        (lambda: networks.model(modules.Classifier, loss=lambda a, b: a.sum()), "cannot be rebuilt in workers"),
        (lambda: networks.model(modules.Classifier, loss="cross"), "did you mean"),
        (lambda: networks.model(modules.Classifier, optimizer="LBFGS"), "needs several losses"),
        (lambda: networks.model(modules.Classifier, optimizer="adan"), "did you mean"),
        (lambda: networks.model(modules.Classifier, batch=0), "does not fit"),
        (lambda: started(networks.model(modules.Classifier, shape=[7])), "has 7 numbers, but rows have 8"),
        (lambda: started(networks.model(modules.Classifier, loss="mse", targets="classes")), "do not fit the loss"),
        (lambda: started(networks.model(modules.Classifier, arguments={"depth": 2})), "could not be built"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(made: Any, sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        made()


@pytest.mark.parametrize(
    ("rows", "labels", "sentence"),
    [
        (X, Y + 5, "label 8 is out of range|label 7 is out of range|label 6 is out of range|label 5 is out of range"),
        (X, np.where(np.arange(256) == 3, np.nan, Y), "a label is missing"),
        (np.where(X > 2.5, np.nan, X), Y, "not finite"),
        (X[:, :5], Y, "does not take rows of 5 columns"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_a_sentence(rows: Any, labels: Any, sentence: str) -> None:
    network = networks.model(modules.Classifier)
    with pytest.raises(UsageError, match=sentence):
        network.validate(Sample(rows, labels, len(rows), rows.shape[1]))


@pytest.mark.processes
def test_a_loss_that_is_not_finite_ends_the_job_with_a_reason(cluster: Any) -> None:
    network = networks.model(modules.Regressor, loss="mse", optimizer="sgd", lr=1e30, epochs=50)
    result = run(network, (X, Y + 0.5), workers=2, sync="bsp", cluster=cluster)
    assert "diverged" in result.reason and not result.converged
    assert np.isfinite(result.parameter.weights).all()
    assert any("lower lr" in text for text in result.warnings)


@pytest.mark.processes
def test_cuda_that_is_not_there_is_refused_with_a_sentence(cluster: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    with pytest.raises(UsageError, match="CUDA is not available on this host"):
        run(networks.model(modules.Classifier), (X, Y), workers=2, gpus=1, cluster=cluster)


def test_lists_and_tables_are_set_from_text() -> None:
    network = networks.model(modules.Classifier, shape="[8]", arguments='{"hidden": 5}', betas="[0.8, 0.9]")
    assert (network.shape, network.arguments, network.betas) == ([8], {"hidden": 5}, [0.8, 0.9])
    with pytest.raises(UsageError, match="does not fit"):
        networks.model(modules.Classifier, shape="[8")


def test_a_module_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from flegel.cli.inspection import check

    data, net = tmp_path / "rows.csv", Path(modules.__file__)
    np.savetxt(data, np.c_[X[:80], Y[:80]], delimiter=",")
    check(f"{net}:Classifier", ["lr=0.1"], str(data), "8")
    assert "the kernel equals the hooks" in capsys.readouterr().out
