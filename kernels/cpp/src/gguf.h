// Reader of GGUF files, version 2 and 3.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "kinds.h"
#include "memory.h"

namespace turing {

// An array of the metadata, left in place; strings are read on demand.
struct GgufArray {
  uint32_t type = 0;
  uint64_t count = 0;
  std::span<const std::byte> bytes;
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray>;

// Metadata and tensors of one file. Everything in the header is checked against the file's size
// before it is believed, so a hostile file costs an Error and neither time nor memory.
class GgufFile {
 public:
  // Throws Error when the file cannot be read whole.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::unordered_map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const Tensor* find(const std::string& name) const;

  // The getters return nothing for an absent key and throw Error for a value of another type.
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> string(const std::string& key) const;
  std::optional<std::vector<std::string>> strings(const std::string& key) const;
  std::optional<std::vector<double>> numbers(const std::string& key) const;

  // Gives the resident pages of the file back.
  void drop_resident() const { file_.drop_resident(); }

 private:
  const GgufValue* value(const std::string& key) const;

  std::string path_;
  MappedFile file_;
  std::unordered_map<std::string, GgufValue> metadata_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace turing
