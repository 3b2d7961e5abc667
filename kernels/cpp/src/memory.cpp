#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "error.h"

namespace turing {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail(path, ": ", std::strerror(errno));
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(path);
  struct stat status{};
  if (fstat(file.get(), &status) != 0) fail(path, ": ", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(path, ": not a regular file");
  if (status.st_size == 0) fail(path, ": the file is empty");
  size_ = static_cast<size_t>(status.st_size);
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) fail(path, ": cannot map the file: ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop_resident() const {
  madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
  madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
}

Pages::Pages(size_t size, bool huge) : size_(size) {
  if (size == 0) return;
  const size_t align = huge ? kHugePage : size_t{4096};
  if (size > SIZE_MAX / 2) fail("cannot allocate ", size, " bytes");
  mapped_size_ = size + align;
  mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    fail("cannot allocate ", size, " bytes: ", std::strerror(errno));
  }
  const auto address = reinterpret_cast<uintptr_t>(mapped_);
  data_ = static_cast<std::byte*>(mapped_) + ((address + align - 1) / align * align - address);
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data_, size, MADV_HUGEPAGE);
#endif
}

Pages::~Pages() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
}

}  // namespace turing
