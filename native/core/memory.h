// Anonymous memory, zero until written, optionally asked to be backed by huge pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ninfer {

class Pages {
 public:
  // Throws std::bad_alloc. `huge` aligns to 2 MiB and asks for transparent huge pages; the kernel may decline.
  Pages(std::size_t bytes, bool huge);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&&) = delete;
  Pages(const Pages&) = delete;

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  void* base_ = nullptr;
  std::size_t mapped_ = 0;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Reads `bytes` at `offset` of a file straight into memory; throws std::runtime_error on a short read.
void read_exactly(int fd, std::uint64_t offset, std::uint8_t* to, std::size_t bytes);

}  // namespace ninfer
