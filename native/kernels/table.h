// Included once by each target file after its vector policy: instantiates every body and fills the kernel table.
#pragma once

#include "kernels/linear_body.h"
#include "kernels/elementwise_body.h"
#include "kernels/kv_body.h"
#include "kernels/attention_body.h"

namespace {

constexpr ninfer::KernelTable make_table(const char* name) {
  return {name, V::kTileRows, V::kFloatTileRows, quantize, product_a8, product_f32, rms_norm, rope, silu_mul,
          kv_append, attention, merge};
}

}  // namespace
