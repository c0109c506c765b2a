"""Every op contract by its name, which is also the name of its module and the `op` of its nodes."""

from __future__ import annotations

from ninfer.ops import (
    embedding,
    kv_append,
    linear,
    paged_attention,
    rms_norm,
    rope,
    rope_angles,
    select_rows,
    silu_mul,
)
from ninfer.ops.spec import OpSpec

SPECS: dict[str, OpSpec] = {
    module.SPEC.name: module.SPEC
    for module in (
        embedding,
        rms_norm,
        linear,
        rope_angles,
        rope,
        kv_append,
        paged_attention,
        silu_mul,
        select_rows,
    )
}
