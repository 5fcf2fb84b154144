"""Several GPUs of one host on virtual time: what they share is what limits them."""

from __future__ import annotations

from bench.micro.host_gpus import BUS, HOSTS, RATE, ROW_BYTES, Host, model, race

ROWS, STAND_FOR = 2_000, 40_000_000


def test_gpus_gain_where_rows_stay_on_them_and_not_where_all_rows_cross_one_bus() -> None:
    def bsp(host: Host, gpus: int) -> float:
        return float(race(host, gpus, ROWS, STAND_FOR, seed=0)["bsp"])

    held = Host("held")
    assert bsp(held, 2) < 0.6 * bsp(held, 1)
    assert bsp(held._replace(slow_half=0.5), 2) > 0.95 * bsp(held, 1), "under bsp the slower one is waited for"
    crossing = Host("crossing", streamed=True)
    assert 0.99 * bsp(crossing, 1) < bsp(crossing, 2) < 1.1 * bsp(crossing, 1)


def test_the_bus_is_shared_by_all_gpus_and_links_are_not() -> None:
    for host in HOSTS:
        made = model(host, 4, ROWS, STAND_FOR)
        assert made.rates is not None and made.network.hub == (float("inf") if host.own_links else BUS)
        of_all = sum(made.rates.values()) * STAND_FOR / ROWS
        assert of_all <= (BUS / ROW_BYTES if host.streamed else 4 * RATE) * 1.000001
