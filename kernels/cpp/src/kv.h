// The memory of keys and values: pages of 64 tokens, each with all layers and KV heads.
#pragma once

#include "memory.h"
#include "number.h"
#include "simd/kernels.h"
#include "spec.h"

namespace turing {

// A page is [layer][kv head][keys, values], see KvFormat. Pages become resident when written.
class KvCache {
 public:
  KvCache(const ModelSpec& spec, KvFormat format, int64_t pages)
      : format_(format),
        head_bytes_(kv_head_bytes(format, spec.head_dim)),
        layer_bytes_(head_bytes_ * static_cast<size_t>(spec.kv_heads)),
        page_bytes_(page_bytes(spec, format)),
        memory_(page_bytes_ * static_cast<size_t>(pages), true) {}

  static size_t page_bytes(const ModelSpec& spec, KvFormat format) {
    return kv_head_bytes(format, spec.head_dim) * static_cast<size_t>(spec.kv_heads) *
           static_cast<size_t>(spec.layers);
  }

  KvFormat format() const { return format_; }
  size_t page_stride() const { return page_bytes_; }
  std::byte* at(int32_t page, int layer, int head) const {
    return memory_.data() + static_cast<size_t>(page) * page_bytes_ +
           static_cast<size_t>(layer) * layer_bytes_ + static_cast<size_t>(head) * head_bytes_;
  }

 private:
  KvFormat format_;
  size_t head_bytes_, layer_bytes_, page_bytes_;
  Pages memory_;
};

}  // namespace turing
