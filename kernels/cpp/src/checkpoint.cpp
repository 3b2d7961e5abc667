#include "checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "error.h"

namespace turing {
namespace {

// Rows and columns of a part's weight; norms are one row.
std::pair<int64_t, int64_t> shape_of(Part part, const ModelSpec& spec) {
  const int64_t query = int64_t{spec.heads} * spec.head_dim;
  const int64_t key = int64_t{spec.kv_heads} * spec.head_dim;
  switch (part) {
    case Part::Embedding:
    case Part::Head: return {spec.vocab_size, spec.hidden};
    case Part::Query: return {query, spec.hidden};
    case Part::Key:
    case Part::Value: return {key, spec.hidden};
    case Part::Output: return {spec.hidden, query};
    case Part::Gate:
    case Part::Up: return {spec.intermediate, spec.hidden};
    case Part::Down: return {spec.hidden, spec.intermediate};
    case Part::QueryNorm:
    case Part::KeyNorm: return {1, spec.head_dim};
    default: return {1, spec.hidden};
  }
}

}  // namespace

const Tensor& Checkpoint::weight(Part part, int layer) const {
  const auto [rows, columns] = shape_of(part, spec_);
  return checked(stem(part, layer) + ".weight", rows, columns);
}

const Tensor& Checkpoint::bias(Part part, int layer) const {
  return checked(stem(part, layer) + ".bias", 1, shape_of(part, spec_).first);
}

const Tensor& Checkpoint::checked(const std::string& name, int64_t rows, int64_t columns) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) fail(path_, ": lacks tensor ", name);
  if (tensor->shape.size() > 2 || tensor->rows() != rows || tensor->columns() != columns) {
    fail(path_, ": tensor ", name, " is ", tensor->rows(), " x ", tensor->columns(), ", not ", rows,
         " x ", columns);
  }
  return *tensor;
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) fail(path, ": ", std::strerror(errno));
  return S_ISDIR(status.st_mode) ? open_safetensors(path) : open_gguf(path);
}

}  // namespace turing
