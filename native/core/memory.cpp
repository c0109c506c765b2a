#include "core/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <stdexcept>
#include <string>

namespace ninfer {

namespace {
constexpr std::size_t kHuge = std::size_t{2} << 20;
}

Pages::Pages(std::size_t bytes, bool huge) : bytes_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes + (huge ? kHuge : 0);
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) throw std::bad_alloc();
  std::uintptr_t start = reinterpret_cast<std::uintptr_t>(base_);
  if (huge) start = (start + kHuge - 1) & ~(kHuge - 1);
  data_ = reinterpret_cast<std::uint8_t*>(start);
#if defined(MADV_HUGEPAGE)
  if (huge) madvise(data_, bytes_, MADV_HUGEPAGE);  // advice: where it is refused, ordinary pages serve
#endif
}

Pages::~Pages() {
  if (base_ != nullptr) munmap(base_, mapped_);
}

Pages::Pages(Pages&& other) noexcept
    : base_(other.base_), mapped_(other.mapped_), data_(other.data_), bytes_(other.bytes_) {
  other.base_ = nullptr;
}

void read_exactly(int fd, std::uint64_t offset, std::uint8_t* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = pread(fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw std::runtime_error(std::string("read failed: ") + strerror(errno));
    if (n == 0) throw std::runtime_error("the file ended early");
    offset += static_cast<std::uint64_t>(n);
    to += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

}  // namespace ninfer
