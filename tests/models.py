"""The models of synchronization under which tests train every algorithm."""

from __future__ import annotations

from flegel.sync import models

MODELS = tuple(name for name in models() if ":" not in name)
"""Without the forms that the papers print, such as `fsp:published`: these are options of the same models, which
tests/sync/test_published.py and test_models_on_workers.py try."""
