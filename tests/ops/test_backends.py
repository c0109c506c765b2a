"""Every backend and instruction set against the contracts: all ops, their own cases, all formats and profiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from make.op_runs import BACKENDS, CPU_ISAS, formats_on, numerics_on, run_case
from ninfer.ops import SPECS
from ninfer.ops.profiles import Profile
from ninfer.ops.spec import Case, F32Array, OpSpec

SEED = 20240607


INPUT_SCALE = 500.0
"""Of nvfp4 weights: a calibration that saw 5.4 as the largest input."""


def variants(spec: OpSpec, backend: str) -> Iterator[tuple[str, str, str]]:
    """(weight format, numerics, KV format) that the backend has, wherever they can make a difference to an op."""
    has_matrix = any(len(axes) == 2 for axes in spec.weights.values())
    uses_kv = spec.writes_kv or "kv" in spec.reads
    for weight_format in formats_on(backend) if has_matrix else ("f32",):
        for numerics in numerics_on(backend) if spec.name == "linear" or uses_kv else ("f32",):
            for kv_format in ("bf16", "int8") if uses_kv else ("int8",):
                yield weight_format, numerics, kv_format


def all_runs() -> Iterator[Any]:
    for spec in SPECS.values():
        for case in spec.cases(np.random.default_rng(SEED)):
            for weight_format, numerics, kv_format in variants(spec, CPU_ISAS[-1]):
                label = f"{spec.name}-{case.label}-{weight_format}-{numerics}-kv_{kv_format}"
                yield pytest.param(spec, case, weight_format, numerics, kv_format, id=label)


RUNS = list(all_runs())


def assert_within(profile: Profile, got: F32Array, want: F32Array) -> None:
    excess = profile.excess(got, want)
    assert excess <= 1, f"{excess:.2f} times the error that profile {profile.name} allows"


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize(("spec", "case", "weight_format", "numerics", "kv_format"), RUNS)
def test_native_kernels_keep_the_contract(
    spec: OpSpec, case: Case, weight_format: str, numerics: str, kv_format: str, isa: str
) -> None:
    runs = [
        run_case(
            backend, case, weight_format, numerics=numerics, kv_format=kv_format, input_scale=INPUT_SCALE, threads=2
        )
        for backend in ("reference", isa)
    ]
    codes = numerics != "f32" and kv_format == "int8"
    for want, got in zip(*runs, strict=True):
        assert_within(spec.profile_of_codes if codes and spec.profile_of_codes else spec.profile, got, want)


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize(("spec", "case", "weight_format", "numerics", "kv_format"), RUNS)
def test_threads_change_no_bit(
    spec: OpSpec, case: Case, weight_format: str, numerics: str, kv_format: str, isa: str
) -> None:
    one, two = (
        run_case(
            isa,
            case,
            weight_format,
            numerics=numerics,
            kv_format=kv_format,
            input_scale=INPUT_SCALE,
            threads=threads,
        )
        for threads in (1, 2)
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["rms_norm", "linear", "silu_mul"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_is_never_lost(name: str, backend: str, bad: float) -> None:
    spec = SPECS[name]
    for case in spec.cases(np.random.default_rng(SEED)):
        for weight_format, numerics, _ in variants(spec, backend):
            x = case.steps[0].inputs[0]
            before = x[-1, 0]
            x[-1, 0] = bad
            with np.errstate(invalid="ignore"):
                (got,) = run_case(backend, case, weight_format, numerics=numerics, input_scale=INPUT_SCALE)
            x[-1, 0] = before
            assert not np.isfinite(got[-1]).all()
            assert np.isfinite(got[:-1]).all()
