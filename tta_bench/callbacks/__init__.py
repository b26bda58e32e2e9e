"""Lightning callbacks that monitor, reset and checkpoint a run."""

from tta_bench.callbacks.agreement import RankAgreement
from tta_bench.callbacks.checkpoint import StreamCheckpoint
from tta_bench.callbacks.forgetting import Forgetting
from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.callbacks.progress import StreamProgress
from tta_bench.callbacks.reset import FreezeAfterFirstDomain, ResetAtBoundaries
from tta_bench.callbacks.state_files import StateFiles

__all__ = [
    "AdaptationMonitor",
    "Forgetting",
    "FreezeAfterFirstDomain",
    "RankAgreement",
    "ResetAtBoundaries",
    "StateFiles",
    "StreamCheckpoint",
    "StreamProgress",
]
