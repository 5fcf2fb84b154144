"""Reports: one HTML file that needs nothing else, and single pictures. Draws what was recorded; measures nothing."""

from __future__ import annotations
