"""Thresholds that a float64 library learnt, as float32 decides them."""

import numpy as np

__all__ = ["float32_below"]


def float32_below(threshold: float) -> float:
    """The largest float32 not above: float32 `x <= threshold` is then decided the same."""
    nearest = np.float32(threshold)
    below = nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf))
    return float(below)
