// Memory straight from the kernel: mapped files and lazily committed zero pages.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace turing {

// A read-only file in memory.
class MappedFile {
 public:
  // Throws Error when the file cannot be opened, is not a regular file or is empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Gives the resident pages back; they are read again when touched.
  void drop_resident() const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Zeroed memory that becomes resident page by page, on first touch. 64-byte aligned and more.
class Pages {
 public:
  Pages() = default;
  // `huge` asks for 2 MiB pages, which pay off where all of it is read in every step.
  explicit Pages(size_t size, bool huge = false);
  ~Pages();
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Pages& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_size_, other.mapped_size_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapped_ = nullptr;
  size_t mapped_size_ = 0;
};

}  // namespace turing
