#include "engine.h"

#include <algorithm>

#include "error.h"

namespace turing {
namespace {

KvFormat format_of(const EngineOptions& options) {
  return options.exact ? KvFormat::F32 : KvFormat::BF16;
}

int64_t pages_of(const EngineOptions& options, const ModelSpec& spec) {
  if (options.pages > 0) return options.pages;
  const auto page = static_cast<int64_t>(KvCache::page_bytes(spec, format_of(options)));
  if (options.kv_bytes < page) {
    fail(options.kv_bytes, " bytes hold no page of ", page, " bytes");
  }
  return options.kv_bytes / page;
}

const EngineOptions& checked(const EngineOptions& options) {
  if (options.slots < 1) fail("slots must be at least 1");
  if (options.max_rows < 1) fail("the largest step must have at least 1 row");
  if (options.threads < 0 || options.threads > 1024) fail("threads must be from 0 to 1024");
  return options;
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : pool_(checked(options).threads > 0 ? options.threads : usable_cores()),
      kernels_(select_kernels(options.isa.c_str())),
      weights_(open_checkpoint(options.path), options.quantize, options.exact, pool_),
      pages_(pages_of(options, weights_.spec())),
      slots_(options.slots),
      max_rows_(options.max_rows),
      cache_(weights_.spec(), format_of(options), pages_),
      sampler_(options.slots, weights_.spec().vocab_size, kernels_),
      decoder_(weights_, kernels_, cache_, sampler_,
               {options.max_rows, std::min(options.slots, options.max_rows), pool_.threads()}) {}

void Engine::check_slot(int slot) const {
  if (slot < 0 || slot >= slots_) fail("slot ", slot, " is not from 0 to ", slots_ - 1);
}

void Engine::start(int slot, SamplingOptions options, std::span<const int32_t> prompt,
                   std::span<const int32_t> output) {
  check_slot(slot);
  const auto check_id = [&](int32_t id) {
    if (id < 0 || id >= spec().vocab_size) fail("token ", id, " is not in the vocabulary");
  };
  for (const auto& ids : {prompt, output, std::span<const int32_t>(options.banned)}) {
    std::for_each(ids.begin(), ids.end(), check_id);
  }
  for (const auto& [id, bias] : options.bias) check_id(id);
  sampler_.start(slot, std::move(options), prompt, output);
}

void Engine::stop(int slot) {
  check_slot(slot);
  sampler_.stop(slot);
}

void Engine::check(const Chunk& chunk) const {
  check_slot(chunk.slot);
  const auto count = static_cast<int64_t>(chunk.ids.size());
  if (count == 0) fail("the chunk of slot ", chunk.slot, " is empty");
  if (chunk.start < 0) fail("the chunk of slot ", chunk.slot, " starts at ", chunk.start);
  const int64_t needed = (chunk.start + count + kPageTokens - 1) / kPageTokens;
  if (static_cast<int64_t>(chunk.pages.size()) < needed) {
    fail("slot ", chunk.slot, " has ", chunk.pages.size(), " pages and needs ", needed);
  }
  for (int32_t page : chunk.pages) {
    if (page < 0 || page >= pages_) fail("page ", page, " is not from 0 to ", pages_ - 1);
  }
  for (int32_t id : chunk.ids) {
    if (id < 0 || id >= spec().vocab_size) fail("token ", id, " is not in the vocabulary");
  }
  if (chunk.sample && !sampler_.started(chunk.slot)) fail("slot ", chunk.slot, " was not started");
}

void Engine::fill(std::span<const Chunk> chunks) {
  batch_ = {};
  for (const Chunk& chunk : chunks) {
    const int rows = static_cast<int>(chunk.ids.size());
    const int index = static_cast<int>(batch_.spans.size());
    int sampled = -1;
    if (chunk.sample) {
      sampled = static_cast<int>(batch_.sampled.size());
      batch_.sampled.push_back(index);
    }
    batch_.spans.push_back({chunk.slot, chunk.start, batch_.rows(), rows, chunk.pages.data(),
                            static_cast<int>(chunk.pages.size()), sampled, chunk.mask});
    batch_.ids.insert(batch_.ids.end(), chunk.ids.begin(), chunk.ids.end());
    batch_.span_of.insert(batch_.span_of.end(), static_cast<size_t>(rows), index);
  }
}

std::span<const Choice> Engine::step(std::span<const Chunk> chunks, float* logits) {
  size_t rows = 0;
  for (const Chunk& chunk : chunks) {
    check(chunk);
    rows += chunk.ids.size();
  }
  if (rows > static_cast<size_t>(max_rows_)) {
    fail("a step of ", rows, " rows is larger than ", max_rows_);
  }
  if (chunks.size() > static_cast<size_t>(slots_)) {
    fail("a step of ", chunks.size(), " sequences is larger than ", slots_);
  }
  if (rows == 0) return {};
  fill(chunks);
  decoder_.prepare(batch_, logits);
  pool_.run(decoder_);
  for (size_t i = 0; i < batch_.sampled.size(); i++) {
    if (decoder_.choices()[i].id < 0) {
      const Span& span = batch_.spans[static_cast<size_t>(batch_.sampled[i])];
      fail("the logits of slot ", span.slot, " are not numbers");
    }
  }
  return decoder_.choices();
}

}  // namespace turing
