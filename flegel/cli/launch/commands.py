"""`flegel launch SYSTEM`: one command for each system, with its own options; `list` and `stop` for kept clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flegel.cli.launch.session import (
    HostName,
    Keep,
    LaunchRequest,
    Memory,
    Slaves,
    Slots,
    Timeout,
    Words,
    launch,
)
from flegel.errors import UsageError
from flegel.terminal.reporting import errors_as_sentences

launch_app = typer.Typer(
    help="A cluster on machines of Slurm, Ray, Dask, Spark, MPI or Kubernetes: started, used, and gone.",
    no_args_is_help=True,
)


@launch_app.command()
def local(
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 60.0,
    keep: Keep = False,
) -> None:
    """Slaves on this host, to try a launch.

    For example:

        flegel launch local --slaves 2 -- submit kmeans --data blobs:20000 --set k=5
    """
    from flegel.cluster.launch.local import Cluster

    launch(LaunchRequest("local", slaves, slots, memory, timeout, None, keep, words or []), Cluster)


@launch_app.command()
def mpi(
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 120.0,
    host: HostName = None,
    hostfile: Annotated[Path | None, typer.Option(help="Hosts as MPI reads them: `node1 slots=4`, one a line.")] = None,
    mpiexec: Annotated[str, typer.Option(help="The command and its options; the first found by default.")] = "",
    keep: Keep = False,
) -> None:
    """Slaves that mpiexec starts.

    For example:

        flegel launch mpi --slaves 4 --hostfile hosts -- submit kmeans --data higgs --set k=20
    """
    from flegel.cluster.launch.mpi import Cluster, read_hostfile

    with errors_as_sentences():
        hosts = [] if hostfile is None else read_hostfile(hostfile)
    request = LaunchRequest("mpi", slaves, slots, memory, timeout, host, keep, words or [])
    launch(request, lambda **options: Cluster(hosts=hosts, mpiexec=mpiexec, **options))


@launch_app.command()
def slurm(
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 86400.0,
    host: HostName = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of srun, such as partition=batch, time=2:00:00 or gres=gpu:1."),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Processors of each slave; one a slot by default.")] = None,
    script: Annotated[
        bool, typer.Option("--script", help="Print a script for sbatch instead; its job requeues itself.")
    ] = False,
    array: Annotated[str, typer.Option(metavar="0-9%2", help="Of a script: an array of jobs; %a is the number.")] = "",
    warning: Annotated[
        int, typer.Option(metavar="SECONDS", help="Of a script: stop with a checkpoint so long before the time limit.")
    ] = 120,
    checkpoints: Annotated[str, typer.Option(help="Of a script: folder that all nodes see.")] = "checkpoints",
    keep: Keep = False,
) -> None:
    """Slaves as jobs of Slurm, or as steps inside an allocation; this command waits in the queue with them.

    For example:

        flegel launch slurm --slaves 4 --option partition=batch -- submit kmeans --data /shared/points.parquet

        flegel launch slurm --script --slaves 4 --option time=2:00:00 -- submit kmeans --data /shared/p.parquet | sbatch
    """
    from flegel.cluster.launch.slurm import Cluster
    from flegel.cluster.launch.slurm_script import SlurmScript

    with errors_as_sentences():
        given = assignments(option or [], "--option")
        if script:
            made = SlurmScript(words or [], slaves, slots, cpus, memory, given, array, warning, checkpoints)
            print(made.text(), end="")
            return
    request = LaunchRequest("slurm", slaves, slots, memory, timeout, host, keep, words or [])
    launch(request, lambda **options: Cluster(options=given, cpus=cpus, **options))


@launch_app.command()
def ray(
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 300.0,
    host: HostName = None,
    address: Annotated[str, typer.Option(help="Of a running Ray cluster; a Ray of its own by default.")] = "",
    strategy: Annotated[
        str, typer.Option(help="Of the placement group: SPREAD, PACK, STRICT_SPREAD, STRICT_PACK.")
    ] = "SPREAD",
    cpus: Annotated[float | None, typer.Option(help="CPUs of each slave; one a slot by default.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each slave.")] = 0.0,
    most: Annotated[
        int | None, typer.Option(help="Ask Ray's autoscaler for so many slaves, and use nodes as they come and go.")
    ] = None,
    resource: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="A resource of Ray that each slave takes.")
    ] = None,
    keep: Keep = False,
) -> None:
    """Slaves as actors of Ray.

    For example:

        flegel launch ray --address auto --slaves 4 -- submit kmeans --data s3://bucket/points.parquet
    """
    from flegel.cluster.launch.ray import Cluster

    with errors_as_sentences():
        resources = {
            name: _number(value, "--resource") for name, value in assignments(resource or [], "--resource").items()
        }
    init = {"address": address} if address else {}
    request = LaunchRequest("ray", slaves, slots, memory, timeout, host, keep, words or [])
    launch(
        request,
        lambda **options: Cluster(
            strategy=strategy, cpus=cpus, gpus=gpus, resources=resources, init=init, most=most, **options
        ),
    )


@launch_app.command()
def dask(
    scheduler: Annotated[str, typer.Option(metavar="ADDRESS", help="Of the scheduler, tcp://HOST:8786.")],
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 120.0,
    host: HostName = None,
    keep: Keep = False,
) -> None:
    """Slaves as tasks on workers of Dask.

    For example:

        flegel launch dask --scheduler tcp://head:8786 --slaves 4 -- submit kmeans --data /shared/points.parquet
    """
    from flegel.cluster.launch.dask import Cluster

    request = LaunchRequest("dask", slaves, slots, memory, timeout, host, keep, words or [])
    launch(request, lambda **options: Cluster(scheduler, **options))


@launch_app.command()
def spark(
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 300.0,
    host: HostName = None,
    spark_master: Annotated[str, typer.Option(help="Such as spark://head:7077 or yarn; Spark's own default.")] = "",
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
    ] = None,
    keep: Keep = False,
) -> None:
    """Slaves as barrier stages of Spark.

    For example:

        flegel launch spark --spark-master spark://head:7077 --slaves 4 -- submit kmeans --data /shared/points.parquet
    """
    from flegel.cluster.launch.spark import Cluster, new_session

    with errors_as_sentences():
        settings = assignments(conf or [], "--conf")
    request = LaunchRequest("spark", slaves, slots, memory, timeout, host, keep, words or [])
    launch(request, lambda **options: Cluster(new_session(spark_master, settings), own=True, **options))


@launch_app.command()
def k8s(
    image: Annotated[str, typer.Option(help="Of the pods, with Flegel in it (packaging/Dockerfile).")],
    words: Words = None,
    slaves: Slaves = 2,
    slots: Slots = 1,
    memory: Memory = None,
    timeout: Timeout = 600.0,
    host: HostName = None,
    namespace: Annotated[str, typer.Option(help="The context's own by default.")] = "",
    kubeconfig: Annotated[str, typer.Option(help="File; inside a pod its service account is used by default.")] = "",
    cpus: Annotated[float | None, typer.Option(help="CPUs of each pod; one a slot by default.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of each pod (nvidia.com/gpu).")] = 0,
    node: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="Pods run on nodes with this label only.")
    ] = None,
    keep: Keep = False,
) -> None:
    """Slaves as pods of Kubernetes, through its API.

    For example, in a pod that may create pods and secrets:

        flegel launch k8s --image registry/flegel:1 --slaves 4 -- submit kmeans --data s3://bucket/points.parquet
    """
    from flegel.cluster.launch.k8s import Cluster

    with errors_as_sentences():
        labels = assignments(node or [], "--node")
    request = LaunchRequest("k8s", slaves, slots, memory, timeout, host, keep, words or [])
    launch(
        request,
        lambda **options: Cluster(
            image=image,
            namespace=namespace,
            kubeconfig=kubeconfig,
            cpus=cpus,
            gpus=gpus,
            node_selector=labels,
            **options,
        ),
    )


@launch_app.command(name="list")
def list_kept() -> None:
    """Clusters that were kept."""
    with errors_as_sentences():
        from flegel.cluster.launch.kept import kept_clusters

        found = kept_clusters()
        for each in found:
            print(f"{each.name:16} {each.address:28} {each.slaves} slaves on {each.system}")
        if not found:
            print("No cluster is kept; `flegel launch SYSTEM --keep` leaves one.")


@launch_app.command()
def stop(name: Annotated[str, typer.Argument(help="As `flegel launch list` shows it.")]) -> None:
    """End a kept cluster, with all that it runs."""
    with errors_as_sentences():
        from flegel.cluster.launch import kept

        kept.stop(name)
        print(f"{name} has ended")


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{flag} needs a number, not {text!r}.") from None


def assignments(words: list[str], flag: str) -> dict[str, str]:
    """`name=value` words; a name alone is a switch."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name:
            raise UsageError(f"{flag} {word!r} is not of the form name=value.")
        found[name.lstrip("-")] = value
    return found
