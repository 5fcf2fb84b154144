"""The settings of this rank: read once, because all ranks must decide by the same numbers from the first barrier on."""

from __future__ import annotations

from functools import cache

from flegel.configuration.ranks import RankSettings
from flegel.configuration.sources import settings_outside


@cache
def rank_settings() -> RankSettings:
    """Those of the block around the first use, and of the environment; threads of PyTorch have none of their own."""
    return settings_outside().ranks
