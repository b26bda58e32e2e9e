"""Watching a run from outside."""

from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.callbacks.progress import StreamProgress

__all__ = ["AdaptationMonitor", "StreamProgress"]
