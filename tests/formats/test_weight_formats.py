"""Every weight format: code values, golden vectors, other people's encoders as oracles, sizes, refusals."""

from __future__ import annotations

import gguf
import gguf.quants
import ml_dtypes
import numpy as np
import pytest

from ninfer import formats
from ninfer.errors import FormatError, UnsupportedError
from ninfer.formats import Planes, bf16

GROUPED = ("q8g32", "q4g32", "q4g32m")
GGUF_TYPE = {
    "q8g32": gguf.GGMLQuantizationType.Q8_0,
    "q4g32": gguf.GGMLQuantizationType.Q4_0,
    "q4g32m": gguf.GGMLQuantizationType.Q4_1,
}
ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE_HALVES = ALL_HALVES[np.isfinite(ALL_HALVES)]


def spread_rows(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Rows whose magnitudes span e^-6 .. e^6, then an all-zero, a constant, an alternating and a tied row."""
    x = rng.standard_normal((n, k)) * np.exp(rng.uniform(-6, 6, (n, 1)))
    special = [
        np.zeros(k),
        np.full(k, 0.3),
        np.where(np.arange(k) % 2, 1.0, -1.0),
        np.where(np.arange(k) % 3, 2.0, -2.0),
    ]
    return np.concatenate([x, special]).astype(np.float32)


def gguf_image(planes: Planes, name: str) -> np.ndarray:
    """The GGUF blocks of planes, uint8 [N, bytes], composed from the block structs alone."""
    n = planes.shape[0]
    groups = planes.codes.reshape(n, -1, 32)
    parts = [planes.scales[..., None].view(np.uint8)]
    if planes.mins is not None:
        parts.append(planes.mins[..., None].view(np.uint8))
    if name == "q8g32":
        parts.append(groups.view(np.uint8))
    else:
        parts.append(groups[..., :16] | groups[..., 16:] << 4)
    return np.concatenate(parts, axis=-1).reshape(n, -1)


def planes_of(name: str, codes: np.ndarray, scales: np.ndarray, mins: np.ndarray | None = None) -> Planes:
    return Planes(codes.shape, codes.astype(formats.get(name).codes_dtype), scales, mins)


def test_names() -> None:
    assert formats.NAMES == (
        "f32", "bf16", "q8g32", "q4g32", "q4g32m", "q4g64", "q5g64", "q6g64", "nvfp4", "fp8",
    )  # fmt: skip
    assert [formats.get(name).name for name in formats.NAMES] == list(formats.NAMES)
    with pytest.raises(UnsupportedError, match=r"q3g64.*known: f32, bf16"):
        formats.get("q3g64")


def test_golden_vector_q8g32() -> None:
    x = (((37 * np.arange(32)) % 64 - 31.5) / 10).astype(np.float32)[None]
    planes = formats.get("q8g32").pack(x)
    assert planes.scales.view(np.uint16).item() == 0x2659
    assert planes.codes[0, :8].tolist() == [-127, 22, -87, 63, -46, 103, -6, -115]


def test_every_code_value_q8g32() -> None:
    codes = np.arange(-128, 128).reshape(1, 256)
    for scale in (1.0, -0.5, 2.0**-24, 65504.0):
        planes = planes_of("q8g32", codes, np.full((1, 8), scale, np.float16))
        np.testing.assert_array_equal(formats.get("q8g32").unpack(planes), codes * scale)


def test_every_code_value_q4g32() -> None:
    codes = np.arange(32).reshape(1, 32) % 16
    for scale in (1.0, -0.5, 2.0**-24, 65504.0):
        planes = planes_of("q4g32", codes, np.full((1, 1), scale, np.float16))
        np.testing.assert_array_equal(formats.get("q4g32").unpack(planes), (codes - 8) * scale)


def test_every_code_value_q4g32m() -> None:
    codes = np.arange(32).reshape(1, 32) % 16
    for scale, low in ((1.0, -3.0), (-0.5, 2.0**-24), (2.0**-24, 65504.0), (65504.0, -65504.0)):
        planes = planes_of("q4g32m", codes, np.full((1, 1), scale, np.float16), np.full((1, 1), low, np.float16))
        np.testing.assert_array_equal(formats.get("q4g32m").unpack(planes), codes * scale + low)


@pytest.mark.parametrize("name", GROUPED)
def test_unpack_equals_gguf_for_every_scale(name: str) -> None:
    rng = np.random.default_rng(1)
    n = len(FINITE_HALVES)
    codes = rng.integers(-128, 128, (n, 32)) if name == "q8g32" else rng.integers(0, 16, (n, 32))
    mins = rng.permutation(FINITE_HALVES)[:, None] if name == "q4g32m" else None
    planes = planes_of(name, codes, FINITE_HALVES[:, None].copy(), mins)
    ours = formats.get(name).unpack(planes)
    assert ours.dtype == np.float64
    theirs = gguf.quants.dequantize(gguf_image(planes, name), GGUF_TYPE[name])
    # gguf works in float32: products are exact there, the sum of q4g32m is our exact one rounded once.
    np.testing.assert_array_equal(ours.astype(np.float32), theirs)


@pytest.mark.parametrize("name", ["q4g32", "q4g32m"])
def test_pack_gives_the_bytes_of_gguf(name: str) -> None:
    x = spread_rows(np.random.default_rng(2), 500, 96)
    planes = formats.get(name).pack(x)
    np.testing.assert_array_equal(gguf_image(planes, name), gguf.quants.quantize(x, GGUF_TYPE[name]))


def test_pack_q8g32_equals_its_definition_element_by_element() -> None:
    x = spread_rows(np.random.default_rng(3), 20, 64)
    planes = formats.get("q8g32").pack(x)
    for row, group in np.ndindex(len(x), 2):
        values = x[row, 32 * group : 32 * group + 32]
        scale = np.float16(np.max(np.abs(values)) / np.float32(127))
        assert planes.scales[row, group] == scale
        inverse = np.float32(1) / np.float32(scale) if scale else np.float32(0)
        wanted = [
            int(min(max(round(float(np.float32(v * inverse))), -127), 127)) for v in values
        ]  # round() is half-even
        assert planes.codes[row, 32 * group : 32 * group + 32].tolist() == wanted


def test_q8g32_scale_that_underflows_becomes_the_smallest_half() -> None:
    x = np.full((1, 32), 2.0**-26, np.float32)
    planes = formats.get("q8g32").pack(x)
    assert planes.scales.view(np.uint16).item() == 1
    assert planes.codes.max() == 0  # a quarter of a step


def test_tiny_values_encode_without_warnings_to_zero() -> None:
    x = np.full((2, 32), 1e-42, np.float32)
    x[1, ::2] = -1e-42
    with np.errstate(all="raise", under="ignore"):
        for name in GROUPED:
            fmt = formats.get(name)
            np.testing.assert_array_equal(fmt.unpack(fmt.pack(x)), np.zeros((2, 32)))


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("k", [1, 31, 33, 63])
def test_a_partial_group_is_encoded_from_its_real_values_alone(name: str, k: int) -> None:
    x = np.random.default_rng(4).uniform(5, 6, (3, k)).astype(np.float32)  # zeros would change minimum and range
    fmt = formats.get(name)
    planes = fmt.pack(x)
    width = -(-k // 32) * 32
    assert planes.shape == (3, k)
    assert planes.codes.shape == (3, width)
    neutral = np.concatenate([x, np.repeat(x[:, -1:], width - k, axis=1)], axis=1)  # no new minimum, no new maximum
    whole = fmt.pack(neutral)
    np.testing.assert_array_equal(planes.codes[:, :k], whole.codes[:, :k])
    np.testing.assert_array_equal(planes.scales, whole.scales)
    if name == "q4g32m":
        np.testing.assert_array_equal(planes.mins, whole.mins)
    np.testing.assert_array_equal(fmt.unpack(planes), fmt.unpack(whole)[:, :k])
    assert (planes.codes[:, k:] == {"q8g32": 0, "q4g32": 8, "q4g32m": 0}[name]).all()


@pytest.mark.parametrize("name", GROUPED)
def test_packing_in_blocks_equals_packing_row_by_row(name: str) -> None:
    x = np.random.default_rng(5).standard_normal((1100, 288), dtype=np.float32)  # more than one block
    fmt = formats.get(name)
    planes = fmt.pack(x)
    for row in (0, 909, 910, 911, 1099):
        alone = fmt.pack(x[row : row + 1])
        np.testing.assert_array_equal(planes.codes[row], alone.codes[0])
        np.testing.assert_array_equal(planes.scales[row], alone.scales[0])


@pytest.mark.parametrize(("name", "error"), [("q8g32", 0.0054), ("q4g32", 0.086), ("q4g32m", 0.078)])
def test_error_on_normal_data(name: str, error: float) -> None:
    x = np.random.default_rng(6).standard_normal((512, 256), dtype=np.float32)
    fmt = formats.get(name)
    rms = np.sqrt(np.mean((fmt.unpack(fmt.pack(x)) - x) ** 2))
    assert rms == pytest.approx(error, rel=0.02)


def test_bf16_encode_equals_ml_dtypes_and_gguf() -> None:
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = (rng.integers(0, 1 << 16, 50_000, dtype=np.uint32) << 16) | np.uint32(0x8000)
    x = np.concatenate([bits, ties]).view(np.float32)
    ours = bf16.encode(x)
    numbers = ~np.isnan(x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ours[numbers], x[numbers].astype(ml_dtypes.bfloat16).view(np.uint16))
    theirs = gguf.quants.quantize(x[None], gguf.GGMLQuantizationType.BF16).view(np.uint16)[0]
    np.testing.assert_array_equal(ours, theirs)


def test_bf16_nan_stays_a_quiet_nan() -> None:
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FBFFFFF, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert bf16.encode(signalling).tolist() == [0x7FC0, 0xFFC0, 0x7FFF, 0x7FFF, 0xFFFF]


def test_bf16_every_code_decodes_exactly_and_encodes_to_itself() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    values = bf16.decode(codes)
    np.testing.assert_array_equal(values.view(np.uint32), codes.astype(np.uint32) << 16)
    again = bf16.encode(values)
    quiet = np.isnan(values) & (codes & 0x40 == 0)
    np.testing.assert_array_equal(again[~quiet], codes[~quiet])
    np.testing.assert_array_equal(again[quiet], codes[quiet] | 0x40)


def test_bf16_of_a_transposed_view_and_of_a_scalar_shape() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(bf16.decode(bf16.encode(x.T)), x.T)
    assert bf16.encode(np.float32(1.0).reshape(())).shape == ()


@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_plain_formats_keep_special_values(name: str) -> None:
    x = np.array([[0.0, -0.0, np.inf, -np.inf, 1.5, np.nan]], np.float32)
    fmt = formats.get(name)
    values = fmt.unpack(fmt.pack(x))
    np.testing.assert_array_equal(values, x.astype(np.float64))
    assert np.signbit(values[0, 1])


def test_f32_pack_copies() -> None:
    x = np.ones((2, 3), np.float32)
    planes = formats.get("f32").pack(x)
    x[:] = 5
    assert (planes.codes == 1).all()


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_without_a_code_are_refused_with_their_place(name: str, bad: float) -> None:
    x = np.zeros((5, 70), np.float32)
    x[3, 40] = bad
    with pytest.raises(FormatError, match=r"row 3, group 1"):
        formats.get(name).pack(x)


def test_q4g32m_range_beyond_half_is_refused() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 1] = 1e6, -60000
    with pytest.raises(FormatError, match="scale"):
        formats.get("q4g32m").pack(x)


@pytest.mark.parametrize("name", formats.NAMES)
def test_wrong_input_is_refused(name: str) -> None:
    fmt = formats.get(name)
    for x in (
        np.zeros(32, np.float32),
        np.zeros((2, 32)),
        np.zeros((0, 32), np.float32),
        np.zeros((1, 2, 32), np.float32),
    ):
        with pytest.raises(FormatError, match="float32 matrix"):
            fmt.pack(x)


def test_unpack_refuses_planes_of_another_format_or_shape() -> None:
    x = np.ones((2, 64), np.float32)
    q8, q4, q4m = (formats.get(name).pack(x) for name in GROUPED)
    wrong = [
        ("q8g32", q4, "codes"),
        ("q4g32", q4m, "no mins"),
        ("q4g32m", q4, "mins.*got nothing"),
        ("q8g32", Planes((2, 65), q8.codes, q8.scales), "codes"),
        ("q8g32", Planes((2, 64), q8.codes, q8.scales[:, :1]), "scales"),
        ("q8g32", Planes((2, 64), q8.codes, q8.scales.astype(np.float32)), "scales"),
        ("q4g32", Planes((2, 64), q4.codes + np.uint8(16), q4.scales), r"0\.\.15"),
        ("bf16", q8, "codes"),
    ]
    for name, planes, message in wrong:
        with pytest.raises(FormatError, match=message):
            formats.get(name).unpack(planes)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("f32", (3, 7), 84),
        ("bf16", (3, 7), 42),
        ("q8g32", (3, 64), 3 * 2 * 34),
        ("q8g32", (3, 65), 3 * 3 * 34),
        ("q4g32", (3, 64), 3 * 2 * 18),
        ("q4g32m", (3, 64), 3 * 2 * 20),
        ("q4g32m", (49152, 576), 49152 * 18 * 20),
    ],
)
def test_nbytes(name: str, shape: tuple[int, int], expected: int) -> None:
    fmt = formats.get(name)
    assert fmt.nbytes(shape) == expected
    if shape[0] < 100:
        planes = fmt.pack(np.ones(shape, np.float32))
        bits = 4 if name.startswith("q4") else 8 * planes.codes.itemsize
        scales = sum(p.nbytes for p in (planes.scales, planes.mins) if p is not None)
        assert planes.codes.size * bits // 8 + scales == expected
