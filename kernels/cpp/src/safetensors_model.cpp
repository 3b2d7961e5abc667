// The decoder families in safetensors folders.
#include <fstream>
#include <optional>
#include <set>
#include <unordered_map>

#include "checkpoint.h"
#include "error.h"
#include "hf_config.h"
#include "json.h"
#include "memory.h"
#include "number.h"

namespace turing {
namespace {

constexpr uint64_t kMaxJson = uint64_t{64} << 20;
constexpr const char* kIndex = "model.safetensors.index.json";
// How multimodal checkpoints name what a text checkpoint calls "model.".
constexpr std::string_view kTextPrefixes[] = {"model.language_model.", "language_model.model."};

const char* name_of(Part part, bool post_norms) {
  switch (part) {
    case Part::Embedding: return "model.embed_tokens";
    case Part::FinalNorm: return "model.norm";
    case Part::Head: return "lm_head";
    case Part::AttentionNorm: return "input_layernorm";
    case Part::Query: return "self_attn.q_proj";
    case Part::Key: return "self_attn.k_proj";
    case Part::Value: return "self_attn.v_proj";
    case Part::Output: return "self_attn.o_proj";
    case Part::QueryNorm: return "self_attn.q_norm";
    case Part::KeyNorm: return "self_attn.k_norm";
    case Part::PostAttentionNorm: return "post_attention_layernorm";
    case Part::FfnNorm:
      return post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    case Part::Gate: return "mlp.gate_proj";
    case Part::Up: return "mlp.up_proj";
    case Part::Down: return "mlp.down_proj";
    default: return "post_feedforward_layernorm";
  }
}

bool once(Part part) {
  return part == Part::Embedding || part == Part::FinalNorm || part == Part::Head;
}

Json read_json(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxJson) fail(path, ": larger than ", kMaxJson, " bytes");
  return Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

std::optional<Kind> kind_of(const std::string& dtype) {
  if (dtype == "F32") return Kind::F32;
  if (dtype == "F16") return Kind::F16;
  if (dtype == "BF16") return Kind::BF16;
  return std::nullopt;
}

// A whole number from 0 to 2^53, which is what a JSON number holds exactly.
uint64_t whole(const Json& value, const std::string& where) {
  const double* number = value.number();
  if (number == nullptr || !(*number >= 0 && *number <= 0x1p53) ||
      *number != static_cast<double>(static_cast<uint64_t>(*number))) {
    fail(where, ": not a whole number");
  }
  return static_cast<uint64_t>(*number);
}

// One .safetensors file: its tensors' places, checked against its size.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : path_(path), file_(path) {
    const auto bytes = file_.bytes();
    if (bytes.size() < 8) fail(path_, ": not a safetensors file");
    const auto length = load_as<uint64_t>(bytes.data());
    if (length > kMaxJson || length > bytes.size() - 8) {
      fail(path_, ": the header claims ", length, " bytes");
    }
    data_ = bytes.subspan(8 + length);
    header_ = Json::parse({reinterpret_cast<const char*>(bytes.data() + 8), length}, path_);
    if (header_.object() == nullptr) fail(path_, ": the header is not an object");
  }

  // Calls visit(name, Tensor) for tensors of known type and refuse(name, type) for others.
  template <class Visit, class Refuse>
  void each(Visit visit, Refuse refuse) const {
    for (const auto& [name, entry] : *header_.object()) {
      if (name == "__metadata__") continue;
      const Json* dtype = entry.find("dtype");
      if (dtype == nullptr || dtype->string() == nullptr) fail(path_, ": ", name, " has no dtype");
      const auto kind = kind_of(*dtype->string());
      if (kind) {
        visit(name, tensor_of(name, entry, *kind));
      } else {
        refuse(name, *dtype->string());
      }
    }
  }

  void drop_resident() const { file_.drop_resident(); }

 private:
  Tensor tensor_of(const std::string& name, const Json& entry, Kind kind) const {
    const std::string where = path_ + ": tensor " + name;
    const Json* shape = entry.find("shape");
    const Json* offsets = entry.find("data_offsets");
    if (shape == nullptr || shape->array() == nullptr) fail(where, " has no shape");
    if (offsets == nullptr || offsets->array() == nullptr || offsets->array()->size() != 2) {
      fail(where, " has no data_offsets");
    }
    Tensor tensor{.name = name, .kind = kind, .shape = {}, .data = nullptr};
    uint64_t count = 1;
    for (const Json& extent : *shape->array()) {
      const uint64_t size = whole(extent, where);
      if (size == 0 || size > data_.size() / count) fail(where, " has an impossible shape");
      count *= size;
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    const uint64_t begin = whole((*offsets->array())[0], where);
    const uint64_t end = whole((*offsets->array())[1], where);
    const auto width = static_cast<uint64_t>(info(kind).bytes);
    if (begin > end || end > data_.size() || end - begin != count * width) {
      fail(where, " lies outside of the file");
    }
    tensor.data = data_.data() + begin;
    return tensor;
  }

  std::string path_;
  MappedFile file_;
  std::span<const std::byte> data_;
  Json header_;
};

std::string text_name(const std::string& name) {
  for (std::string_view prefix : kTextPrefixes) {
    if (name.starts_with(prefix)) return "model." + name.substr(prefix.size());
  }
  constexpr std::string_view kOuter = "language_model.";
  return name.starts_with(kOuter) ? name.substr(kOuter.size()) : name;
}

bool is_file(const std::string& path) { return std::ifstream(path).good(); }

// The names of a folder's weight files: of the index, or the one file there is.
std::set<std::string> weight_files(const std::string& folder) {
  const std::string index = folder + "/" + kIndex;
  if (!is_file(index)) {
    if (is_file(folder + "/model.safetensors")) return {"model.safetensors"};
    fail(folder, ": no model.safetensors and no ", kIndex);
  }
  const Json json = read_json(index);
  const Json* map = json.find("weight_map");
  if (map == nullptr || map->object() == nullptr) fail(index, ": no weight_map");
  std::set<std::string> files;
  for (const auto& [tensor, file] : *map->object()) {
    const std::string* name = file.string();
    if (name == nullptr || name->find('/') != std::string::npos ||
        !name->ends_with(".safetensors")) {
      fail(index, ": weight_map does not map tensors to file names");
    }
    files.insert(*name);
  }
  return files;
}

class SafetensorsCheckpoint final : public Checkpoint {
 public:
  explicit SafetensorsCheckpoint(const std::string& folder) : Checkpoint(folder) {
    const std::string config = folder + "/config.json";
    spec_ = spec_from_config(read_json(config), config);
    for (const std::string& name : weight_files(folder)) {
      files_.push_back(std::make_unique<SafetensorsFile>(folder + "/" + name));
      files_.back()->each(
          [&](const std::string& key, Tensor tensor) {
            tensors_.insert_or_assign(text_name(key), std::move(tensor));
          },
          [&](const std::string& key, const std::string& dtype) {
            refused_.insert_or_assign(text_name(key), dtype);
          });
    }
  }

  void drop_resident() const override {
    for (const auto& file : files_) file->drop_resident();
  }

 protected:
  const Tensor* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return &found->second;
    const auto refused = refused_.find(name);
    if (refused != refused_.end()) {
      fail(path_, ": tensor ", name, " has type ", refused->second,
           ", which is not supported, only F32, F16 and BF16");
    }
    return nullptr;
  }
  std::string stem(Part part, int layer) const override {
    const char* name = name_of(part, spec_.post_norms);
    if (once(part)) return name;
    return "model.layers." + std::to_string(layer) + "." + name;
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::unordered_map<std::string, std::string> refused_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_safetensors(const std::string& folder) {
  return std::make_unique<SafetensorsCheckpoint>(folder);
}

}  // namespace turing
