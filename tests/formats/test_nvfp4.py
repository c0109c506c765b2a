"""nvfp4: golden block, both directions of the tensor scale, compressed-tensors as oracle, partial groups, refusals."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ninfer import formats
from ninfer.errors import FormatError
from ninfer.formats import Planes, TensorScale
from ninfer.formats.nvfp4 import NVFP4, effective_scales
from ninfer.formats.small_floats import E4M3

FMT = NVFP4()
LEGAL_SCALES = np.arange(0x7F, dtype=np.uint8)


def golden() -> np.ndarray:
    r, i = np.ogrid[:2, :16]
    x = ((((16 * r + i) * 7) % 16) - 7.5) / 4
    x[1] *= 0.01
    return x.astype(np.float32)


def test_golden_block() -> None:
    planes = FMT.pack(golden())
    assert planes.tensor == TensorScale(1 / float(np.float32(1433.6)))
    assert planes.scales.tolist() == [[0x7E, 0], [0x49, 0]]
    codes = [15, 9, 7, 12, 6, 14, 4, 15, 1, 7, 10, 6, 13, 5, 14, 2]
    assert planes.codes[:, :16].tolist() == [codes, codes]
    assert not planes.codes[:, 16:].any()


def test_one_factor_is_exact_for_divisors_and_multipliers() -> None:
    """`float32(scale * factor)` equals the float32 division and the float32 product, for every scale."""
    rng = np.random.default_rng(3)
    scales = E4M3[LEGAL_SCALES]
    some = np.exp2(rng.uniform(-100, 100, 50_000)).astype(np.float32)
    near = (np.float32(1) + np.arange(4096, dtype=np.float32) * np.float32(2.0**-23)) * np.float32(1024)
    for value in np.concatenate([some, near, near[:200] * 3, np.float32(2688) / some[:5000]]):
        if not 2.0**-100 <= value <= 2.0**100:
            continue
        divided = effective_scales(LEGAL_SCALES, TensorScale.of_divisor(float(value)))
        np.testing.assert_array_equal(divided, scales / value)
        multiplied = effective_scales(LEGAL_SCALES, TensorScale(float(value)))
        np.testing.assert_array_equal(multiplied, scales * value)


def test_every_code_under_every_scale() -> None:
    codes = np.tile(np.arange(32) % 16, (127, 1)).astype(np.uint8)
    planes = Planes(
        (127, 32), codes, np.repeat(LEGAL_SCALES[:, None], 2, axis=1), tensor=TensorScale.of_divisor(1433.5)
    )
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    eff = LEGAL_SCALES.view(ml_dtypes.float8_e4m3fn).astype(np.float32) / np.float32(1433.5)
    np.testing.assert_array_equal(FMT.unpack(planes), values * eff[:, None].astype(np.float64))


def by_definition(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Codes, scale codes and g of float32 `[N, K]`, K a multiple of 16, with the casts of ml_dtypes."""
    g = np.float32(2688) / np.abs(x).max()
    groups = x.reshape(len(x), -1, 16)
    wanted = np.minimum(g * np.abs(groups).max(axis=-1) / np.float32(6), np.float32(448))
    scales = wanted.astype(ml_dtypes.float8_e4m3fn)
    eff = (scales.astype(np.float32) / g)[..., None]
    scaled = np.divide(groups, eff, out=np.zeros_like(groups), where=eff > 0)
    codes = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return codes.view(np.uint8).reshape(x.shape), scales.view(np.uint8), g


@pytest.mark.parametrize("k", [32, 96, 4096])
def test_pack_equals_its_definition(k: int) -> None:
    rng = np.random.default_rng(k)
    x = (rng.standard_normal((300, k)) * np.exp(rng.uniform(-9, 3, (300, 1)))).astype(np.float32)
    x[7, :16] = 0
    x[8] *= 1e-9  # scales that round to 0
    planes = FMT.pack(x)
    codes, scales, g = by_definition(x)
    np.testing.assert_array_equal(planes.scales, scales)
    np.testing.assert_array_equal(planes.codes[scales.repeat(16, axis=1) > 0], codes[scales.repeat(16, axis=1) > 0])
    assert not planes.codes[scales.repeat(16, axis=1) == 0].any()
    assert planes.tensor == TensorScale.of_divisor(float(g))


def test_compressed_tensors_decodes_what_we_encode_and_the_other_way_round() -> None:
    import torch
    from compressed_tensors.compressors.nvfp4 import pack_fp4_to_uint8, unpack_fp4_from_uint8

    x = np.random.default_rng(5).standard_normal((64, 128)).astype(np.float32)
    planes = FMT.pack(x)
    packed = planes.codes[:, 0::2] | planes.codes[:, 1::2] << 4
    theirs = unpack_fp4_from_uint8(torch.from_numpy(packed), 64, 128, dtype=torch.float32)
    g = np.float32(2688) / np.abs(x).max()
    scales = torch.from_numpy(planes.scales).view(torch.float8_e4m3fn).to(torch.float32) / float(g)
    decoded = (theirs.reshape(64, -1, 16) * scales[..., None]).reshape(64, 128)
    np.testing.assert_array_equal(FMT.unpack(planes).astype(np.float32), decoded.numpy())
    np.testing.assert_array_equal(pack_fp4_to_uint8(theirs).numpy(), packed)


@pytest.mark.parametrize("k", [1, 15, 16, 17, 33, 47])
def test_partial_groups_are_encoded_from_their_real_values(k: int) -> None:
    x = np.random.default_rng(k).standard_normal((5, k)).astype(np.float32)
    planes = FMT.pack(x)
    whole = FMT.pack(np.pad(x, [(0, 0), (0, -k % 32)]))
    np.testing.assert_array_equal(planes.codes, whole.codes)
    np.testing.assert_array_equal(planes.scales, whole.scales)
    assert not planes.codes[:, k:].any()
    np.testing.assert_array_equal(FMT.unpack(planes), FMT.unpack(whole)[:, :k])


def test_parts_of_a_tensor_share_its_scale() -> None:
    x = np.random.default_rng(9).standard_normal((1100, 480)).astype(np.float32)
    whole = FMT.pack(x)
    amax = float(np.abs(x).max())
    parts = [FMT.pack_part(x[rows], amax) for rows in (slice(0, 700), slice(700, 1100))]
    np.testing.assert_array_equal(whole.codes, np.concatenate([part.codes for part in parts]))
    np.testing.assert_array_equal(whole.scales, np.concatenate([part.scales for part in parts]))
    assert {whole.tensor, *(part.tensor for part in parts)} == {whole.tensor}
    with pytest.raises(FormatError, match=r"row \d+, group \d+ is not finite or above"):
        FMT.pack_part(x, amax / 2)


def test_zeros_tiny_and_huge_tensors() -> None:
    for value in (0.0, 1e-42, 1e-30):
        with np.errstate(all="raise", under="ignore"):
            values = FMT.unpack(FMT.pack(np.full((2, 32), value, np.float32)))
        np.testing.assert_allclose(values, 0 if value < 1e-30 else value, rtol=0.04)
    np.testing.assert_allclose(FMT.unpack(FMT.pack(np.full((2, 32), 1e33, np.float32))), 1e33, rtol=1e-6)
    with pytest.raises(FormatError, match="beyond nvfp4"):
        FMT.pack(np.full((2, 32), 3e38, np.float32))


def test_error_on_normal_data() -> None:
    x = np.random.default_rng(6).standard_normal((512, 256), dtype=np.float32)
    assert np.sqrt(np.mean((FMT.unpack(FMT.pack(x)) - x) ** 2)) == pytest.approx(0.095, rel=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_without_a_code_are_refused(bad: float) -> None:
    for place in ((0, 0), (3, 40)):
        x = np.ones((5, 70), np.float32)
        x[place] = bad
        with pytest.raises(FormatError, match=rf"row {place[0]}, group {place[1] // 16}|beyond nvfp4"):
            FMT.pack(x)


def test_planes_need_their_tensor_scale_and_other_formats_none() -> None:
    planes = FMT.pack(golden())
    with pytest.raises(FormatError, match="nvfp4 needs a tensor scale"):
        FMT.unpack(replace(planes, tensor=None))
    with pytest.raises(FormatError, match="q4g32 has no tensor scale"):
        formats.get("q4g32").unpack(replace(formats.get("q4g32").pack(golden()), tensor=planes.tensor))
    with pytest.raises(FormatError, match=r"codes must be 0\.\.15"):
        FMT.unpack(replace(planes, codes=planes.codes + np.uint8(16)))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 2.0**-101, 2.0**101])
def test_tensor_scales_out_of_range_are_refused(bad: float) -> None:
    for make in (TensorScale, TensorScale.of_divisor, lambda value: TensorScale(1.0, value)):
        with pytest.raises(FormatError, match=r"2\^-100 to 2\^100"):
            make(bad)
    with pytest.raises(FormatError, match="no float32"):
        TensorScale(1.0, 0.1)
    with pytest.raises(FormatError, match="no float32"):
        TensorScale.of_divisor(1433.6)


def test_size() -> None:
    assert FMT.nbytes((3, 64)) == 3 * 36 + 12
    assert FMT.nbytes((3, 65)) == 3 * 54 + 12
