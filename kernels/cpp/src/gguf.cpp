#include "gguf.h"

#include <bit>

#include "error.h"
#include "number.h"

namespace turing {
namespace {

constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxElements = uint64_t{1} << 40;
constexpr int kMaxDims = 4;

// Value types of the metadata, numbered as in the format.
enum Type : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64 };

// Bytes of a fixed-size value; 0 for strings, arrays and unknown types.
uint64_t type_size(uint32_t type) {
  switch (type) {
    case U8:
    case I8:
    case Bool: return 1;
    case U16:
    case I16: return 2;
    case U32:
    case I32:
    case F32: return 4;
    case U64:
    case I64:
    case F64: return 8;
    default: return 0;
  }
}

// Walks the header; every read is checked against what is left of the file.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& path) : left_(bytes), path_(path) {}

  template <class T>
  T read(std::string_view what) {
    return load_as<T>(take(sizeof(T), what).data());
  }

  std::string_view text(std::string_view what) {
    const auto length = read<uint64_t>(what);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> take(uint64_t size, std::string_view what) {
    if (size > left_.size()) fail(path_, ": the file ends inside ", what);
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }

  uint64_t left() const { return left_.size(); }
  const std::byte* here() const { return left_.data(); }

 private:
  std::span<const std::byte> left_;
  const std::string& path_;
};

double scalar_number(uint32_t type, const std::byte* bytes) {
  switch (type) {
    case U8: return load_as<uint8_t>(bytes);
    case I8: return load_as<int8_t>(bytes);
    case U16: return load_as<uint16_t>(bytes);
    case I16: return load_as<int16_t>(bytes);
    case U32: return load_as<uint32_t>(bytes);
    case I32: return load_as<int32_t>(bytes);
    case U64: return static_cast<double>(load_as<uint64_t>(bytes));
    case I64: return static_cast<double>(load_as<int64_t>(bytes));
    case F32: return load_as<float>(bytes);
    case F64: return load_as<double>(bytes);
    default: return load_as<uint8_t>(bytes) != 0;
  }
}

GgufArray read_array(Cursor& cursor, const std::string& key, const std::string& path) {
  GgufArray array;
  array.type = cursor.read<uint32_t>(key);
  array.count = cursor.read<uint64_t>(key);
  const std::byte* begin = cursor.here();
  if (array.type == Text) {
    if (array.count > cursor.left() / sizeof(uint64_t)) fail(path, ": the file ends inside ", key);
    for (uint64_t i = 0; i < array.count; i++) cursor.text(key);
  } else if (const uint64_t size = type_size(array.type)) {
    if (array.count > cursor.left() / size) fail(path, ": the file ends inside ", key);
    cursor.take(array.count * size, key);
  } else {
    fail(path, ": ", key, " is an array of type ", array.type, ", which is not supported");
  }
  array.bytes = {begin, static_cast<size_t>(cursor.here() - begin)};
  return array;
}

GgufValue read_value(Cursor& cursor, const std::string& key, const std::string& path) {
  const auto type = cursor.read<uint32_t>(key);
  switch (type) {
    case U8: return uint64_t{cursor.read<uint8_t>(key)};
    case U16: return uint64_t{cursor.read<uint16_t>(key)};
    case U32: return uint64_t{cursor.read<uint32_t>(key)};
    case U64: return cursor.read<uint64_t>(key);
    case I8: return int64_t{cursor.read<int8_t>(key)};
    case I16: return int64_t{cursor.read<int16_t>(key)};
    case I32: return int64_t{cursor.read<int32_t>(key)};
    case I64: return cursor.read<int64_t>(key);
    case F32: return double{cursor.read<float>(key)};
    case F64: return cursor.read<double>(key);
    case Bool: return cursor.read<uint8_t>(key) != 0;
    case Text: return std::string(cursor.text(key));
    case Array: return read_array(cursor, key, path);
    default: fail(path, ": ", key, " has the unknown type ", type);
  }
}

// Shape, kind and offset of one tensor; `offset` counts from the start of the data section.
struct Entry {
  Tensor tensor;
  uint64_t offset;
  uint64_t bytes;
};

Entry read_entry(Cursor& cursor, const std::string& path) {
  Entry entry;
  entry.tensor.name = cursor.text("a tensor's name");
  const std::string& name = entry.tensor.name;
  const auto dims = cursor.read<uint32_t>(name);
  if (dims == 0 || dims > kMaxDims) fail(path, ": tensor ", name, " has ", dims, " dimensions");
  uint64_t count = 1;
  std::vector<int64_t>& shape = entry.tensor.shape;
  shape.resize(dims);
  for (uint32_t i = 0; i < dims; i++) {
    const auto extent = cursor.read<uint64_t>(name);
    if (extent == 0 || extent > kMaxElements / count) {
      fail(path, ": tensor ", name, " has an impossible shape");
    }
    count *= extent;
    shape[dims - 1 - i] = static_cast<int64_t>(extent);
  }
  const auto kind = cursor.read<uint32_t>(name);
  entry.offset = cursor.read<uint64_t>(name);
  const KindInfo* known = find_kind(kind);
  if (known == nullptr) {
    fail(path, ": tensor ", name, " has kind ", kind_name(kind), ", which is not supported");
  }
  if (shape.back() % known->block != 0) {
    fail(path, ": tensor ", name, " of kind ", known->name, " has rows of ", shape.back(),
         " elements, not a multiple of ", known->block);
  }
  entry.tensor.kind = known->kind;
  entry.bytes = count / known->block * known->bytes;
  return entry;
}

// Reads magic, version and counts; returns {tensors, keys}.
std::pair<uint64_t, uint64_t> read_counts(Cursor& cursor, const std::string& path) {
  if (cursor.left() < 4 || load_as<uint32_t>(cursor.here()) != 0x46554747) {
    fail(path, ": not a GGUF file");
  }
  cursor.take(4, "the magic");
  const auto version = cursor.read<uint32_t>("the version");
  if (version != 2 && version != 3) fail(path, ": GGUF version ", version, " is not supported");
  const auto tensors = cursor.read<uint64_t>("the tensor count");
  const auto keys = cursor.read<uint64_t>("the key count");
  if (tensors > kMaxTensors) fail(path, ": the header claims ", tensors, " tensors");
  if (keys > kMaxKeys) fail(path, ": the header claims ", keys, " keys");
  return {tensors, keys};
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : path_(path), file_(path) {
  static_assert(std::endian::native == std::endian::little);
  Cursor cursor(file_.bytes(), path_);
  const auto [tensors, keys] = read_counts(cursor, path_);
  for (uint64_t i = 0; i < keys; i++) {
    std::string key(cursor.text("a key"));
    GgufValue value = read_value(cursor, key, path_);
    if (!metadata_.emplace(key, std::move(value)).second) fail(path_, ": duplicate key ", key);
  }
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensors; i++) entries.push_back(read_entry(cursor, path_));

  const int64_t alignment = integer("general.alignment").value_or(32);
  if (alignment < 1 || alignment > 1 << 20 || !std::has_single_bit(uint64_t(alignment))) {
    fail(path_, ": general.alignment is ", alignment);
  }
  const uint64_t header = file_.bytes().size() - cursor.left();
  const uint64_t start = static_cast<uint64_t>(round_up(static_cast<int64_t>(header), alignment));
  const uint64_t data = start < file_.bytes().size() ? file_.bytes().size() - start : 0;
  for (Entry& entry : entries) {
    const std::string name = entry.tensor.name;
    if (entry.offset % static_cast<uint64_t>(alignment) != 0) {
      fail(path_, ": tensor ", name, " is not aligned");
    }
    if (entry.offset > data || entry.bytes > data - entry.offset) {
      fail(path_, ": tensor ", name, " lies outside of the file");
    }
    entry.tensor.data = file_.bytes().data() + start + entry.offset;
    if (!index_.emplace(name, tensors_.size()).second) fail(path_, ": duplicate tensor ", name);
    tensors_.push_back(std::move(entry.tensor));
  }
}

const Tensor* GgufFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::value(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<int64_t> GgufFile::integer(const std::string& key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<int64_t>(found)) return *number;
  const auto* number = std::get_if<uint64_t>(found);
  if (number == nullptr || *number > INT64_MAX) fail(path_, ": ", key, " is not an integer");
  return static_cast<int64_t>(*number);
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(found)) return *number;
  return static_cast<double>(*integer(key));
}

std::optional<bool> GgufFile::boolean(const std::string& key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  const auto* flag = std::get_if<bool>(found);
  if (flag == nullptr) fail(path_, ": ", key, " is not a boolean");
  return *flag;
}

std::optional<std::string> GgufFile::string(const std::string& key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string>(found);
  if (text == nullptr) fail(path_, ": ", key, " is not a string");
  return *text;
}

std::optional<std::vector<std::string>> GgufFile::strings(const std::string& key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(found);
  if (array == nullptr || array->type != Text) fail(path_, ": ", key, " is not a list of strings");
  std::vector<std::string> texts;
  Cursor cursor(array->bytes, path_);
  for (uint64_t i = 0; i < array->count; i++) texts.emplace_back(cursor.text(key));
  return texts;
}

std::optional<std::vector<double>> GgufFile::numbers(const std::string& key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(found);
  if (array == nullptr || array->type == Text) fail(path_, ": ", key, " is not a list of numbers");
  std::vector<double> numbers;
  const uint64_t size = type_size(array->type);
  for (uint64_t i = 0; i < array->count; i++) {
    numbers.push_back(scalar_number(array->type, array->bytes.data() + i * size));
  }
  return numbers;
}

}  // namespace turing
