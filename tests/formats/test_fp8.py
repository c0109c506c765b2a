"""fp8: the encoder against ml_dtypes, every code, rows at the ends of the range, refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer import formats
from ninfer.errors import FormatError
from ninfer.formats import Planes

FP8 = formats.get("fp8")


@pytest.mark.parametrize("k", [1, 3, 4, 5, 64, 701])
def test_pack_equals_its_definition(k: int) -> None:
    rng = np.random.default_rng(k)
    x = (rng.standard_normal((400, k)) * np.exp(rng.uniform(-20, 20, (400, 1)))).astype(np.float32)
    planes = FP8.pack(x)
    scales = np.abs(x).max(axis=1, keepdims=True) / np.float32(448)
    np.testing.assert_array_equal(planes.scales, scales)
    wanted = np.clip(x / scales, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(planes.codes[:, :k], wanted.view(np.uint8))
    assert not planes.codes[:, k:].any()
    np.testing.assert_array_equal(FP8.unpack(planes), wanted.astype(np.float64) * scales.astype(np.float64))


def test_every_code_decodes_exactly() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
    scales = np.array([[1.0], [2.0**-126], [3.1e38]], np.float32)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales.astype(np.float64)
    np.testing.assert_array_equal(FP8.unpack(Planes((3, 256), codes, scales)), wanted)


def test_rows_of_zeros_tiny_and_huge_values() -> None:
    x = np.zeros((4, 8), np.float32)
    x[1], x[2], x[3] = 1e-40, 2.0**-120, 3e38
    with np.errstate(all="raise", under="ignore"):
        planes = FP8.pack(x)
        values = FP8.unpack(planes)
    assert planes.scales[:2, 0].tolist() == [2.0**-126] * 2
    assert not values[0].any()
    np.testing.assert_allclose(values[2:], x[2:], rtol=0.07)


def test_error_on_normal_data() -> None:
    x = np.random.default_rng(6).standard_normal((512, 256), dtype=np.float32)
    assert np.sqrt(np.mean((FP8.unpack(FP8.pack(x)) - x) ** 2)) == pytest.approx(0.026, rel=0.03)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_without_a_code_are_refused_with_their_row(bad: float) -> None:
    x = np.zeros((5000, 100), np.float32)
    x[4000, 7] = bad
    with pytest.raises(FormatError, match="row 4000"):
        FP8.pack(x)


def test_size_and_shapes() -> None:
    assert FP8.nbytes((3, 64)) == 3 * 68
    assert FP8.nbytes((3, 65)) == 3 * 72
    planes = FP8.pack(np.ones((3, 65), np.float32))
    for wrong in (Planes((3, 69), planes.codes, planes.scales), Planes((3, 65), planes.codes, planes.scales[:, 0])):
        with pytest.raises(FormatError, match=r"codes|scales"):
            FP8.unpack(wrong)
