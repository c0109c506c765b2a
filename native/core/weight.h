// Stored matrices: where the parts of a format lie in its bytes, and single rows as floats.
#pragma once

#include "core/kernels.h"

namespace ninfer {

// A matrix [n, k] of `bytes` bytes in layout n16; std::invalid_argument unless that is exactly its size.
Weight make_weight(const std::uint8_t* data, std::size_t bytes, WeightFormat format, int n, int k);

// Row `id`, each value rounded once to float32.
void decode_row(const Weight& w, int id, float* out);

}  // namespace ninfer
