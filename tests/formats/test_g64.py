"""q4g64, q5g64, q6g64: golden vectors, every code, the encoder element by element."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer import formats
from ninfer.errors import FormatError
from ninfer.formats import Planes

ZERO = {"q4g64": 8, "q5g64": 16, "q6g64": 32}


@pytest.mark.parametrize(
    ("name", "scale", "codes"),
    [
        ("q4g64", 0x3733, [-7, 1, -5, 3, -3, 6, 0, -6]),
        ("q5g64", 0x32B8, [-15, 3, -10, 7, -5, 12, -1, -14]),
        ("q6g64", 0x2E81, [-31, 5, -21, 15, -11, 25, -1, -28]),
    ],
)
def test_golden_vector(name: str, scale: int, codes: list[int]) -> None:
    x = (((37 * np.arange(64)) % 64 - 31.5) / 10).astype(np.float32)[None]
    planes = formats.get(name).pack(x)
    assert planes.scales.view(np.uint16).item() == scale
    assert (planes.codes[0, :8].astype(int) - ZERO[name]).tolist() == codes


@pytest.mark.parametrize("name", ZERO)
def test_every_code_under_every_scale(name: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)][:, None]
    steps = np.arange(64) % (2 * ZERO[name])
    planes = Planes((len(halves), 64), np.tile(steps, (len(halves), 1)).astype(np.uint8), halves)
    values = formats.get(name).unpack(planes)
    np.testing.assert_array_equal(values, (steps - ZERO[name]) * halves.astype(np.float64))


@pytest.mark.parametrize("name", ZERO)
@pytest.mark.parametrize("k", [1, 63, 64, 65, 130])
def test_pack_equals_its_definition_element_by_element(name: str, k: int) -> None:
    rng = np.random.default_rng(k)
    x = (rng.standard_normal((9, k)) * np.exp(rng.uniform(-16, 6, (9, 1)))).astype(np.float32)
    x[3] = 0
    x[4] = 2.0**-25  # the scale would round to 0
    planes = formats.get(name).pack(x)
    qmax, qmin = ZERO[name] - 1, -ZERO[name]
    for row, group in np.ndindex(planes.scales.shape):
        values = x[row, 64 * group : 64 * group + 64]
        amax = np.max(np.abs(values))
        scale = np.float16(amax / np.float32(qmax))
        if scale == 0 and amax > 0:
            scale = np.float16(2.0**-24)
        assert planes.scales[row, group] == scale
        inverse = np.float32(1) / np.float32(scale) if scale else np.float32(0)
        wanted = [min(max(round(float(np.float32(v * inverse))), qmin), qmax) for v in values]  # round() is half-even
        codes = planes.codes[row, 64 * group : 64 * group + 64].astype(int) - ZERO[name]
        assert codes.tolist() == [*wanted, *[0] * (64 - len(wanted))]


@pytest.mark.parametrize(("name", "error"), [("q4g64", 0.108), ("q5g64", 0.050), ("q6g64", 0.024)])
def test_error_on_normal_data(name: str, error: float) -> None:
    x = np.random.default_rng(6).standard_normal((512, 256), dtype=np.float32)
    fmt = formats.get(name)
    assert np.sqrt(np.mean((fmt.unpack(fmt.pack(x)) - x) ** 2)) == pytest.approx(error, rel=0.02)


@pytest.mark.parametrize("name", ZERO)
def test_refusals(name: str) -> None:
    fmt = formats.get(name)
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        x = np.zeros((5, 70), np.float32)
        x[3, 69] = bad
        with pytest.raises(FormatError, match="row 3, group 1"):
            fmt.pack(x)
    codes = np.full((1, 64), 2 * ZERO[name], np.uint8)
    with pytest.raises(FormatError, match=f"codes must be 0..{2 * ZERO[name] - 1}"):
        fmt.unpack(Planes((1, 64), codes, np.ones((1, 1), np.float16)))
    with pytest.raises(FormatError, match="scales"):
        fmt.unpack(Planes((1, 64), codes, np.ones((1, 2), np.float16)))


@pytest.mark.parametrize(("name", "bits"), [("q4g64", 4.25), ("q5g64", 5.25), ("q6g64", 6.25)])
def test_size(name: str, bits: float) -> None:
    fmt = formats.get(name)
    assert fmt.nbytes((3, 128)) == 3 * 128 * bits / 8
    assert fmt.nbytes((3, 65)) == 3 * 128 * bits / 8
