#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "core/memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ByteArray = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;

ByteArray allocate(std::size_t bytes, bool huge) {
  auto* pages = new ninfer::Pages(bytes, huge);
  nb::capsule owner(pages, [](void* p) noexcept { delete static_cast<ninfer::Pages*>(p); });
  return ByteArray(pages->data(), {pages->size()}, owner);
}

void read_into(int fd, std::uint64_t offset, nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> to) {
  nb::gil_scoped_release release;
  ninfer::read_exactly(fd, offset, to.data(), to.size());
}

}  // namespace

void bind_memory(nb::module_& m) {
  m.def("allocate", &allocate, "bytes"_a, "huge"_a,
        "Zeroed anonymous memory as a uint8 array; `huge` asks for transparent huge pages. Raises MemoryError.");
  m.def("read_into", &read_into, "fd"_a, "offset"_a, "to"_a.noconvert(),
        "Fill a uint8 array from a file at an offset; raises RuntimeError when the file ends early.");
}
