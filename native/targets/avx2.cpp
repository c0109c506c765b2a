#include "core/kernels.h"

#if defined(__AVX2__)
#include "kernels/vec_avx2.h"

#include "kernels/attention_pairs.h"
#include "kernels/table.h"

namespace ninfer {

static constexpr KernelTable kTable = make_table("avx2");

const KernelTable* avx2_kernels() { return &kTable; }

}  // namespace ninfer
#else
namespace ninfer {
const KernelTable* avx2_kernels() { return nullptr; }
}  // namespace ninfer
#endif
