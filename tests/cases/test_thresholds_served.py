"""S72: thresholds and inputs rounded to different sides in 32 and 64 bits.

What is served decides as the model that was packaged does, on 32-bit values: a payload of doubles
is rounded first, so all forms of one value get one label. Training's side: `test_training.py`.
"""

from typing import Any

import grpc
import numpy as np
import pytest

from labeler.models.thresholds import float32_below
from tests.support.accounting import balanced
from tests.support.service import Service, serve
from tests.support.training import stump
from tests.support.wire import WIDTH, Wire, doubles, floats, raw32, raw64, request, wire

# No number of 32 bits, one, a tiny one, a large one, and where two neighbours are furthest apart.
THRESHOLDS = [0.1, 0.5, 1e-38, 123456.789, 2.0**24 + 1]
UP, DOWN = np.float64(np.inf), np.float64(-np.inf)


def around(threshold: float) -> list[float]:
    """The threshold in 64 bits and in 32, each with its neighbours and the halves between."""
    near = np.float32(threshold)
    low, high = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    exact = [float(low), float(near), float(high), threshold]
    halves = [(float(low) + float(near)) / 2, (float(near) + float(high)) / 2]
    fine = [float(np.nextafter(v, end)) for v in [*exact, *halves] for end in (UP, DOWN)]
    return sorted({*exact, *halves, *fine})


@pytest.fixture(scope="module")
def stumps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("thresholds")
    named = {threshold: f"stump-{place}" for place, threshold in enumerate(THRESHOLDS)}
    for threshold, name in named.items():
        stump(float32_below(threshold), folder / "models", name)
    settings: dict[str, Any] = {
        "models__repositories": [str(folder / "models")],
        "models__load": list(named.values()),
        "models__default": "stump-0",
    }
    started = serve(folder / "state", **settings)
    try:
        yield started.wait_ready(), named
    finally:
        started.close()


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_each_form_of_a_value_beside_a_threshold_gets_the_label_of_its_32_bits(
    stumps: tuple[Service, dict[float, str]], threshold: float
) -> None:
    service, named = stumps
    with wire(service.address) as stubs:
        for place, value in enumerate(around(threshold), start=1):
            rounded = float(np.float32(value))
            expected = "low" if rounded <= threshold else "high"
            forms = [doubles([value]), raw64([value]), floats([rounded]), raw32([rounded])]
            labels = []
            for form, payload in enumerate(forms):
                asked = request(f"{threshold}-{form}", place, payload, model=named[threshold])
                labels.append(stubs.labels.Label(asked).label)
            assert labels == [expected] * len(forms), value
    balanced(service)


def test_the_ends_of_a_models_range_are_checked_before_the_cast(service: Service) -> None:
    """`kiva-floor` takes 0 to 10: the ends are taken, the next double beyond them is not."""
    with wire(service.address) as stubs:
        for place, end in enumerate((0.0, 10.0), start=1):
            _label(stubs, place, end)
            beyond = float(np.nextafter(end, DOWN if end == 0 else UP))
            assert np.float32(beyond) == np.float32(end), "the cast would hide it"
            with pytest.raises(grpc.RpcError) as refused:
                _label(stubs, 10 + place, beyond)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"payload.doubles is {beyond!r} at index 0" in str(refused.value.details())
    balanced(service)


def _label(stubs: Wire, sequence: int, value: float) -> None:
    payload = doubles([value] + [2.5] * (WIDTH - 1))
    assert stubs.labels.Label(request("range-ends", sequence, payload)).label
