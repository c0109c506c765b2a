#include "core/kernels.h"

#if defined(__AMX_INT8__)
#include "kernels/vec_avx512.h"

#include "kernels/attention_digits.h"
#include "kernels/amx_attention.h"
#include "kernels/amx_body.h"
#include "kernels/table.h"

namespace ninfer {

static constexpr KernelTable amx_table() {
  KernelTable table = make_table("amx");
  table.tile_rows = kAmxRows;
  table.product_a8 = amx_product_a8;
  table.attention = amx_attention;
  return table;
}

static constexpr KernelTable kTable = amx_table();

const KernelTable* amx_kernels() { return &kTable; }

}  // namespace ninfer
#else
namespace ninfer {
const KernelTable* amx_kernels() { return nullptr; }
}  // namespace ninfer
#endif
