#include "kernels/vec_scalar.h"

#include "kernels/attention_pairs.h"
#include "kernels/table.h"

namespace ninfer {

static constexpr KernelTable kTable = make_table("scalar");

const KernelTable* scalar_kernels() { return &kTable; }

// The scratch layout does not depend on the target.
std::size_t attention_scratch_bytes() { return sizeof(AttentionScratch); }

}  // namespace ninfer
