"""Whether a row's scores stay the same, bit for bit, whatever runs beside it in one batch.

The core measures the same at each load and drops batch sizes that disagree; here it is known
before a version is packaged. Needs ONNX Runtime alone.
"""

import numpy as np
import onnxruntime

from labeler.models.inference import Rows, run

__all__ = ["BATCHES", "batches_that_differ"]

BATCHES = (2, 3, 4, 7, 8, 16, 32, 64, 128, 256)
_PROBES_MAX = 64


def batches_that_differ(
    session: onnxruntime.InferenceSession, golden: Rows, value_range: tuple[float, float] | None
) -> list[int]:
    """Sizes of `BATCHES` in which a probe's scores are not those it has alone.

    Probes are golden rows and rows of extreme values, in turn; each starts a batch of each size.
    """
    low, high = value_range or (-np.finfo(np.float32).max, np.finfo(np.float32).max)
    width = golden.shape[1]
    extremes = [np.full(width, value, dtype=np.float32) for value in (low, high, (low + high) / 2)]
    extremes.append(np.where(np.arange(width) % 2, low, high).astype(np.float32))
    some = golden[:: max(1, len(golden) * 2 // _PROBES_MAX)][: _PROBES_MAX // 2]
    turns = [row for place, row in enumerate(some) for row in (row, extremes[place % 4])]
    probes = np.stack(turns)
    alone = np.concatenate([run(session, probe[np.newaxis]) for probe in probes])
    differing = []
    for size in BATCHES:
        for first in range(len(probes)):
            places = (first + np.arange(size)) % len(probes)
            if run(session, probes[places]).tobytes() != alone[places].tobytes():
                differing.append(size)
                break
    return differing
