"""Every op contract by its name, which is also the name of its module and the `op` of its nodes."""

from __future__ import annotations

from ninfer.ops import (
    causal_conv,
    delta_gates,
    dynamic_conv,
    embedding,
    gated_delta_rule,
    gated_rms_norm,
    kv_append,
    l2_norm,
    linear,
    paged_attention,
    rms_norm,
    rope,
    rope_angles,
    select_rows,
    sigmoid_mul,
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
        sigmoid_mul,
        causal_conv,
        dynamic_conv,
        l2_norm,
        delta_gates,
        gated_delta_rule,
        gated_rms_norm,
        silu_mul,
        select_rows,
    )
}
