// The rows of one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace turing {

// One sequence's consecutive rows; row i is at position start + i.
struct Span {
  int slot;
  int start;
  int row0;
  int rows;
  const int32_t* pages;  // covers start + rows tokens
  int page_count;
  int sampled;                     // index among the sampled rows, or -1
  const uint32_t* mask = nullptr;  // the ids that may be sampled, one bit each; null = all
};

struct Batch {
  std::vector<Span> spans;
  std::vector<int32_t> ids;      // [rows]
  std::vector<int32_t> span_of;  // [rows]
  std::vector<int32_t> sampled;  // [sampled rows] index of the span, whose last row is meant

  int rows() const { return static_cast<int>(ids.size()); }
  const Span& span(int row) const {
    return spans[static_cast<size_t>(span_of[static_cast<size_t>(row)])];
  }
  int position(int row) const { return span(row).start + row - span(row).row0; }
};

}  // namespace turing
