#include "core/kernels.h"

#if defined(__AVX512VNNI__)
#include "kernels/vec_avx512.h"

#include "kernels/attention_digits.h"
#include "kernels/table.h"

namespace ninfer {

static constexpr KernelTable kTable = make_table("avx512_vnni");

const KernelTable* avx512_vnni_kernels() { return &kTable; }

}  // namespace ninfer
#else
namespace ninfer {
const KernelTable* avx512_vnni_kernels() { return nullptr; }
}  // namespace ninfer
#endif
