// Included once by each target file after its vector policy: instantiates every body and fills the kernel table.
#pragma once

#include "kernels/linear_body.h"
#include "kernels/float_body.h"
#include "kernels/elementwise_body.h"
#include "kernels/kv_body.h"
#include "kernels/attention_body.h"
#include "kernels/recurrent_body.h"

namespace {

constexpr ninfer::KernelTable make_table(const char* name) {
  return {name,        V::kTileRows,   quantize,      quantize_a8g32, quantize_w4a4, product_a8,
          product_a8g32, product_w4a4, product_f32,   rms_norm,       gated_rms_norm, l2_norm,
          rope,        silu_mul,       sigmoid_mul,   delta_gates,    causal_conv,   dynamic_conv, delta_rule,
          kv_append,   attention,      merge};
}

}  // namespace
