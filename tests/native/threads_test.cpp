// The C functions called from several threads at once, compared to the bit with the same calls made
// alone; and those, to tolerance, with plain loops.  Needs no Python, so that sanitizers see every
// access and emulators need nothing else.
//
//   threads_test [rounds]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/include/chairlift_kernels.h"

namespace {

using Floats = std::vector<float>;
using Integers = std::vector<int32_t>;

constexpr int64_t kTokens = 37, kHidden = 96, kInner = 64, kBlockSize = 16, kBlocks = 12;
constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 32, kMaxPosition = 256;
constexpr int64_t kToken = kKvHeads * kDim, kQkvWidth = kHeads * kDim + 2 * kToken;
constexpr int64_t kSlots = kBlocks * kBlockSize;
constexpr int64_t kSampled = 2, kVocabulary = 500, kListed = 5;
constexpr int32_t kKvTypes[] = {CHAIRLIFT_KV_INT8, CHAIRLIFT_KV_FLOAT16, CHAIRLIFT_KV_BFLOAT16,
                                CHAIRLIFT_KV_FLOAT32};

[[noreturn]] void stop(const std::string& what) {
  std::fprintf(stderr, "failed: %s (%s)\n", what.c_str(), chairlift_last_error());
  std::exit(1);
}

void check(int32_t status, const char* what) {
  if (status != CHAIRLIFT_OK) stop(what);
}

// Numbers from -1 to 1, the same everywhere.
Floats numbers(int64_t count, uint32_t seed) {
  Floats result(static_cast<size_t>(count));
  for (float& x : result) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
  return result;
}

class Pool {
 public:
  explicit Pool(int32_t num_threads) { check(chairlift_pool_create(num_threads, &pool_), "pool"); }
  ~Pool() { chairlift_pool_destroy(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  chairlift_pool* get() const { return pool_; }

 private:
  chairlift_pool* pool_ = nullptr;
};

// A matrix of four-bit codes: the packed form, and the numbers it stands for.
struct Matrix {
  std::vector<uint64_t> packed;
  Floats weights;
};

Matrix pack(int64_t out_features, int64_t in_features, int32_t interleave, uint32_t seed) {
  const int64_t groups = in_features / 32;
  Floats scales = numbers(out_features * groups, seed), mins = scales;
  std::vector<uint8_t> codes(static_cast<size_t>(out_features * in_features));
  Matrix matrix;
  for (size_t i = 0; i < codes.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    codes[i] = static_cast<uint8_t>(seed >> 28);
    const float scale = scales[i / 32];
    matrix.weights.push_back(scale * static_cast<float>(codes[i]) - 8.0f * scale);
  }
  for (float& min : mins) min *= -8.0f;
  chairlift_grouped_weights description = {};
  description.struct_size = sizeof description;
  description.codes = codes.data();
  description.scales = scales.data();
  description.mins = mins.data();
  description.out_features = out_features;
  description.in_features = in_features;
  description.bits = 4;
  description.group_size = 32;
  description.interleave = interleave;
  const int64_t num_bytes = chairlift_linear_q8_size(&description);
  if (num_bytes == 0) stop("size of a matrix");
  matrix.packed.resize(static_cast<size_t>(num_bytes / 8));
  const Pool pool(2);
  check(chairlift_linear_q8_pack(pool.get(), &description, matrix.packed.data()), "pack");
  return matrix;
}

// x W^T, the plain way.
Floats multiply(const Floats& x, const Floats& weights, int64_t in_features) {
  Floats result;
  const int64_t outputs = static_cast<int64_t>(weights.size()) / in_features;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(in_features)) {
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0;
      for (int64_t k = 0; k < in_features; ++k) sum += x[row + k] * weights[o * in_features + k];
      result.push_back(static_cast<float>(sum));
    }
  }
  return result;
}

void expect_close(const Floats& actual, const Floats& expected, double tolerance,
                  const char* what) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::fmax(largest, std::fabs(expected[i]));
    error = std::fmax(error, std::fabs(actual[i] - expected[i]));
    if (std::isnan(actual[i])) stop(what);
  }
  if (actual.size() != expected.size() || !(error <= tolerance * largest)) stop(what);
}

// Two sequences: 36 new tokens that are all there is, and one that follows 149 others.
struct Batch {
  Integers query_start = {0, 36, 37}, context_lens = {36, 150}, positions;
  Integers tables = std::vector<int32_t>(2 * kBlocks, -99);
  std::vector<int64_t> slots;

  Batch() {
    for (int32_t block = 0; block < 2; ++block) tables[block + 1] = 5 + block;
    tables[0] = 11;
    for (int32_t block = 0; block < 10; ++block) tables[kBlocks + block] = (block * 3 + 1) % 10;
    tables[kBlocks + 9] = 10;
    for (int32_t i = 0; i < kTokens; ++i) positions.push_back(i < 36 ? i : 149);
    for (int32_t i = 0; i < kTokens; ++i) {
      const int32_t* table = tables.data() + (i < 36 ? 0 : kBlocks);
      slots.push_back(int64_t{table[positions[i] / kBlockSize]} * kBlockSize +
                      positions[i] % kBlockSize);
    }
  }
};

// Bytes of a cache, on 64-bit words.
using Cache = std::vector<uint64_t>;

int64_t piece_bytes(int32_t kv_type) {
  return chairlift_kv_piece_bytes(kv_type, kBlockSize, kKvHeads, kDim);
}

// A layer's weights and a step's inputs: shared by all threads, never written to.
struct Layer {
  Batch batch;
  Floats x = numbers(kTokens * kHidden, 1), norm = numbers(kHidden, 2);
  Floats cos = numbers(kMaxPosition * kDim / 2, 3), sin = numbers(kMaxPosition * kDim / 2, 4);
  Floats keys = numbers(kSlots * kToken, 5), values = numbers(kSlots * kToken, 6);
  Floats query = numbers(kTokens * kHeads * kDim, 7);
  Matrix qkv = pack(kQkvWidth, kHidden, 0, 8), output = pack(kHidden, kHeads* kDim, 0, 9);
  Matrix gate_up = pack(2 * kInner, kHidden, 16, 10), down = pack(kHidden, kInner, 0, 11);
  Matrix head = pack(kVocabulary, kHidden, 0, 12);
  Floats packed = Floats(static_cast<size_t>(chairlift_linear_f32_size(kVocabulary, kHidden)));
  Floats matrix = numbers(kVocabulary * kHidden, 13);
  std::vector<uint16_t> bfloats = std::vector<uint16_t>(packed.size());  // the upper halves
  Cache caches[4];  // of each type, every slot with a token

  Layer() {
    const Pool pool(2);
    check(chairlift_linear_f32_pack(pool.get(), matrix.data(), CHAIRLIFT_FLOAT32, kVocabulary,
                                    kHidden, packed.data()),
          "pack floats");
    std::vector<uint16_t> upper;
    for (const float x : matrix) {
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      upper.push_back(static_cast<uint16_t>(bits >> 16));
    }
    check(chairlift_linear_f32_pack(pool.get(), upper.data(), CHAIRLIFT_BFLOAT16, kVocabulary,
                                    kHidden, bfloats.data()),
          "pack bfloats");
    for (const int32_t kv_type : kKvTypes) fill_cache(pool, kv_type);
  }

  const Cache& cache(int32_t kv_type) const { return caches[kv_type - 1]; }

  chairlift_qkv_to_cache store_task(int32_t kv_type, Cache& cache) const {
    chairlift_qkv_to_cache task = {};
    task.struct_size = sizeof task;
    task.cos = cos.data();
    task.sin = sin.data();
    task.positions = batch.positions.data();
    task.slots = batch.slots.data();
    task.kv_cache = reinterpret_cast<uint8_t*>(cache.data());
    task.block_stride = piece_bytes(kv_type);
    task.num_blocks = kBlocks;
    task.num_tokens = kTokens;
    task.max_position = kMaxPosition;
    task.block_size = kBlockSize;
    task.num_heads = kHeads;
    task.num_kv_heads = kKvHeads;
    task.head_dim = kDim;
    task.rope_dim = kDim;
    task.norm_eps = 1e-5f;
    task.kv_type = kv_type;
    return task;
  }

  chairlift_attention attention_task(int32_t kv_type, const Cache& cache) const {
    chairlift_attention task = {};
    task.struct_size = sizeof task;
    task.kv_cache = reinterpret_cast<const uint8_t*>(cache.data());
    task.query_start = batch.query_start.data();
    task.context_lens = batch.context_lens.data();
    task.block_tables = batch.tables.data();
    task.block_stride = piece_bytes(kv_type);
    task.num_blocks = kBlocks;
    task.num_tokens = kTokens;
    task.num_sequences = 2;
    task.max_blocks = kBlocks;
    task.block_size = kBlockSize;
    task.num_heads = kHeads;
    task.num_kv_heads = kKvHeads;
    task.head_dim = kDim;
    task.scale = 0.2f;
    task.kv_type = kv_type;
    return task;
  }

 private:
  void fill_cache(const Pool& pool, int32_t kv_type) {
    Cache& cache = caches[kv_type - 1];
    cache.resize(static_cast<size_t>(kBlocks * piece_bytes(kv_type) / 8));
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < kSlots; ++i) slots.push_back(i);
    if (kv_type == CHAIRLIFT_KV_INT8) {
      const Floats tokens = numbers(kSlots * kQkvWidth, 14);
      const Integers positions(static_cast<size_t>(kSlots), 0);
      std::vector<int8_t> codes(static_cast<size_t>(kSlots * kHeads * kDim));
      Floats scales(static_cast<size_t>(kSlots * kHeads));
      chairlift_qkv_to_cache task = store_task(kv_type, cache);
      task.qkv = tokens.data();
      task.positions = positions.data();
      task.slots = slots.data();
      task.query = codes.data();
      task.query_scales = scales.data();
      task.num_tokens = kSlots;
      check(chairlift_store_qkv(pool.get(), &task), "fill a cache of bytes");
      return;
    }
    chairlift_kv_to_cache task = {};
    task.struct_size = sizeof task;
    task.key = keys.data();
    task.value = values.data();
    task.slots = slots.data();
    task.kv_cache = reinterpret_cast<uint8_t*>(cache.data());
    task.key_stride = task.value_stride = kToken;
    task.block_stride = piece_bytes(kv_type);
    task.num_blocks = kBlocks;
    task.num_tokens = kSlots;
    task.block_size = kBlockSize;
    task.num_kv_heads = kKvHeads;
    task.head_dim = kDim;
    task.kv_type = kv_type;
    check(chairlift_store_kv(pool.get(), &task), "fill a cache of floats");
  }
};

// -- the calls -----------------------------------------------------------------------------------

Floats linear_f32(const Layer& layer, const Pool& pool) {
  Floats out(static_cast<size_t>(kTokens * kVocabulary));
  check(chairlift_linear_f32(pool.get(), layer.x.data(), kTokens, layer.packed.data(),
                             CHAIRLIFT_FLOAT32, nullptr, kVocabulary, kHidden, out.data()),
        "linear_f32");
  return out;
}

Floats linear_bf16(const Layer& layer, const Pool& pool) {
  Floats out(static_cast<size_t>(kTokens * kVocabulary));
  check(chairlift_linear_f32(pool.get(), layer.x.data(), kTokens, layer.bfloats.data(),
                             CHAIRLIFT_BFLOAT16, nullptr, kVocabulary, kHidden, out.data()),
        "linear_f32 of bfloats");
  return out;
}

Floats linear_q8(const Layer& layer, const Pool& pool) {
  Floats out(static_cast<size_t>(kTokens * kQkvWidth));
  check(chairlift_linear_q8(pool.get(), layer.x.data(), kTokens, layer.qkv.packed.data(), nullptr,
                            nullptr, out.data()),
        "linear_q8");
  return out;
}

Floats rows_q8(const Layer& layer, const Pool& pool) {
  Integers ids;
  for (int32_t id = 0; id < kQkvWidth; ++id) ids.push_back(id);
  Floats out(static_cast<size_t>(kQkvWidth * kHidden));
  check(chairlift_rows_q8(pool.get(), layer.qkv.packed.data(), ids.data(), kQkvWidth, out.data()),
        "rows_q8");
  return out;
}

Floats mlp_q8(const Layer& layer, const Pool& pool) {
  Floats out(static_cast<size_t>(kTokens * kHidden));
  check(chairlift_norm_mlp_q8(pool.get(), layer.x.data(), kTokens, layer.norm.data(), 1e-5f,
                              layer.gate_up.packed.data(), nullptr, layer.down.packed.data(),
                              nullptr, layer.x.data(), out.data()),
        "mlp_q8");
  return out;
}

// Stored keys and values and what is read of them, in a cache of its own.
template <int32_t KV_TYPE>
Floats attention(const Layer& layer, const Pool& pool) {
  Cache cache = layer.cache(KV_TYPE);
  const Floats qkv = numbers(kTokens * kQkvWidth, 15);
  Floats query(layer.query.size()), scales(static_cast<size_t>(kTokens * kHeads));
  chairlift_qkv_to_cache store = layer.store_task(KV_TYPE, cache);
  store.qkv = qkv.data();
  store.query = query.data();
  store.query_scales = scales.data();
  check(chairlift_store_qkv(pool.get(), &store), "store_qkv");
  Floats out(layer.query.size());
  chairlift_attention task = layer.attention_task(KV_TYPE, cache);
  task.query = query.data();
  task.query_scales = scales.data();
  task.out = out.data();
  check(chairlift_paged_attention(pool.get(), &task), "paged_attention");
  return out;
}

// Two layers in one call, each with a cache of its own.
template <int32_t KV_TYPE>
Floats step(const Layer& layer, const Pool& pool) {
  constexpr int kLayers = 2;
  Cache caches[kLayers] = {layer.cache(KV_TYPE), layer.cache(KV_TYPE)};
  const chairlift_qkv_to_cache store = layer.store_task(KV_TYPE, caches[0]);
  const chairlift_attention task = layer.attention_task(KV_TYPE, caches[0]);
  Floats rows[] = {layer.x, Floats(layer.x.size()), Floats(layer.x.size())};
  chairlift_attention_block attention[kLayers] = {};
  chairlift_mlp_block mlp[kLayers] = {};
  std::vector<chairlift_block> blocks;
  for (int i = 0; i < kLayers; ++i) {
    attention[i].struct_size = sizeof attention[i];
    attention[i].x = rows[i].data();
    attention[i].out = rows[i + 1].data();
    attention[i].norm = layer.norm.data();
    attention[i].qkv = layer.qkv.packed.data();
    attention[i].output = layer.output.packed.data();
    attention[i].kv_cache = reinterpret_cast<uint8_t*>(caches[i].data());
    attention[i].store = &store;
    attention[i].attention = &task;
    mlp[i].struct_size = sizeof mlp[i];
    mlp[i].x = mlp[i].out = rows[i + 1].data();
    mlp[i].norm = layer.norm.data();
    mlp[i].gate_up = layer.gate_up.packed.data();
    mlp[i].down = layer.down.packed.data();
    mlp[i].rows = kTokens;
    mlp[i].eps = 1e-5f;
    blocks.push_back({&attention[i], nullptr});
    blocks.push_back({nullptr, &mlp[i]});
  }
  check(chairlift_run_blocks(pool.get(), blocks.data(), static_cast<int64_t>(blocks.size())),
        "run_blocks");
  return rows[kLayers];
}

// What sampling asks of two rows: one with a list and a weight, one with noise and edits.
struct Sampling {
  chairlift_row_query queries[kSampled] = {};
  Integers edit_ids = {0, 499, 0, 17};
  Floats edit_values = {-INFINITY, 0.5f, 1.0f, 2.0f};
  chairlift_row_candidates found[kSampled] = {};
  Integers listed_ids = Integers(static_cast<size_t>(kSampled * kListed), -1);
  Floats listed_logits = Floats(static_cast<size_t>(kSampled * kListed));
  chairlift_candidates task = {};

  Sampling() {
    for (int64_t row = 0; row < kSampled; ++row) {
      queries[row].key = 7 + static_cast<uint64_t>(row);
      queries[row].temperature = 0.7f;
      queries[row].depth = 10.0f;
      queries[row].list_size = static_cast<int32_t>(kListed - row);
      queries[row].wants_weight = row == 0;
      queries[row].repetition_penalty = 1.1f;
    }
    queries[1].first_penalty = 2;
    queries[1].last_edit = 4;
    task.struct_size = sizeof task;
    task.queries = queries;
    task.edit_ids = edit_ids.data();
    task.edit_values = edit_values.data();
    task.num_edits = 4;
    task.max_listed = kListed;
    task.found = found;
    task.listed_ids = listed_ids.data();
    task.listed_logits = listed_logits.data();
  }

  // Everything that was found, ids included.
  Floats results() const {
    Floats all;
    for (int64_t row = 0; row < kSampled; ++row) {
      const chairlift_row_candidates& one = found[row];
      all.push_back(static_cast<float>(one.total_weight));
      all.push_back(one.best_logit);
      all.push_back(static_cast<float>(one.best_id));
      for (int32_t i = 0; i < one.num_contenders; ++i) {
        all.push_back(static_cast<float>(one.contender_ids[i]));
        all.push_back(one.contender_logits[i]);
      }
      for (int64_t i = row * kListed; i < row * kListed + one.num_listed; ++i) {
        all.push_back(static_cast<float>(listed_ids[static_cast<size_t>(i)]));
        all.push_back(listed_logits[static_cast<size_t>(i)]);
      }
    }
    return all;
  }
};

Floats rows_f32(const Layer& layer, const Pool& pool) {
  const int32_t ids[] = {3, 0, kVocabulary - 1};
  Floats out(static_cast<size_t>(3 * kHidden));
  check(chairlift_rows_f32(pool.get(), layer.packed.data(), CHAIRLIFT_FLOAT32, kVocabulary, kHidden,
                           ids, 3, out.data()),
        "rows_f32");
  return out;
}

Floats candidates_f32(const Layer& layer, const Pool& pool) {
  Sampling sampling;
  check(chairlift_candidates_f32(pool.get(), layer.x.data(), kSampled, layer.packed.data(),
                                 CHAIRLIFT_FLOAT32, nullptr, kVocabulary, kHidden, &sampling.task),
        "candidates_f32");
  return sampling.results();
}

Floats candidates_q8(const Layer& layer, const Pool& pool) {
  Sampling sampling;
  check(chairlift_candidates_q8(pool.get(), layer.x.data(), kSampled, layer.norm.data(), 1e-5f,
                                layer.head.packed.data(), nullptr, &sampling.task),
        "candidates_q8");
  return sampling.results();
}

Floats quantize_rows(const Layer& layer, const Pool& pool) {
  std::vector<uint8_t> records(static_cast<size_t>(kTokens * kHidden / 32 * 48));
  check(chairlift_quantize_rows(pool.get(), layer.x.data(), kTokens, kHidden, 32, records.data()),
        "quantize_rows");
  return Floats(records.begin(), records.end());
}

constexpr struct {
  const char* name;
  Floats (*call)(const Layer& layer, const Pool& pool);
} kCalls[] = {
    {"linear_f32", linear_f32},
    {"linear_f32 of bfloats", linear_bf16},
    {"rows_f32", rows_f32},
    {"linear_q8", linear_q8},
    {"rows_q8", rows_q8},
    {"mlp_q8", mlp_q8},
    {"quantize_rows", quantize_rows},
    {"attention on bytes", attention<CHAIRLIFT_KV_INT8>},
    {"attention on float16", attention<CHAIRLIFT_KV_FLOAT16>},
    {"attention on bfloat16", attention<CHAIRLIFT_KV_BFLOAT16>},
    {"attention on float32", attention<CHAIRLIFT_KV_FLOAT32>},
    {"a step on bytes", step<CHAIRLIFT_KV_INT8>},
    {"a step on float16", step<CHAIRLIFT_KV_FLOAT16>},
    {"candidates_f32", candidates_f32},
    {"candidates_q8", candidates_q8},
};

// -- what they should give -----------------------------------------------------------------------

// Attention over what is stored, for all tokens.
Floats attend(const Layer& layer, const Pool& pool) {
  Floats out(layer.query.size());
  chairlift_attention task =
      layer.attention_task(CHAIRLIFT_KV_FLOAT32, layer.cache(CHAIRLIFT_KV_FLOAT32));
  task.query = layer.query.data();
  task.out = out.data();
  check(chairlift_paged_attention(pool.get(), &task), "paged_attention");
  return out;
}

// The last token's first head, the plain way.
Floats last_head(const Layer& layer) {
  const int64_t context = layer.batch.context_lens[1];
  const float* query = layer.query.data() + (kTokens - 1) * kHeads * kDim;
  std::vector<double> sums(kDim, 0.0);
  double total = 0;
  for (int64_t position = 0; position < context; ++position) {
    const int64_t block = layer.batch.tables[kBlocks + position / kBlockSize];
    const int64_t token = (block * kBlockSize + position % kBlockSize) * kToken;
    double score = 0;
    for (int64_t i = 0; i < kDim; ++i) score += query[i] * layer.keys[token + i];
    const double weight = std::exp(score * 0.2);
    total += weight;
    for (int64_t i = 0; i < kDim; ++i) sums[i] += weight * layer.values[token + i];
  }
  Floats result;
  for (const double sum : sums) result.push_back(static_cast<float>(sum / total));
  return result;
}

// The largest logits of the first sampled row, and their sum of weights.
void check_candidates(const Layer& layer, const Pool& pool) {
  const Floats logits = multiply(layer.x, layer.matrix, kHidden);
  std::vector<float> first(logits.begin(), logits.begin() + kVocabulary);
  std::sort(first.begin(), first.end(), std::greater<float>());
  double weight = 0;
  for (const float logit : first) weight += std::exp((logit - first[0]) / 0.7f);
  Sampling sampling;
  check(chairlift_candidates_f32(pool.get(), layer.x.data(), kSampled, layer.packed.data(),
                                 CHAIRLIFT_FLOAT32, nullptr, kVocabulary, kHidden, &sampling.task),
        "candidates_f32");
  const chairlift_row_candidates& found = sampling.found[0];
  if (found.num_listed != kListed) stop("not all that were asked for are listed");
  const auto listed = sampling.listed_logits.begin();
  expect_close(Floats(listed, listed + kListed), Floats(first.begin(), first.begin() + kListed),
               1e-5, "the listed logits are not the largest");
  expect_close({static_cast<float>(found.total_weight)}, {static_cast<float>(weight)}, 1e-4,
               "the weights' sum is wrong");
}

void check_values(const Layer& layer) {
  const Pool pool(1);
  expect_close(linear_f32(layer, pool), multiply(layer.x, layer.matrix, kHidden), 1e-5,
               "linear_f32 is not the product");
  expect_close(linear_bf16(layer, pool), multiply(layer.x, layer.matrix, kHidden), 0.02,
               "linear_f32 of bfloats is far from the product");
  expect_close(rows_q8(layer, pool), layer.qkv.weights, 1e-6, "rows_q8 are not the rows");
  expect_close(linear_q8(layer, pool), multiply(layer.x, layer.qkv.weights, kHidden), 0.02,
               "linear_q8 is far from the product");
  const Floats attended = attend(layer, pool);
  const auto last = attended.begin() + (kTokens - 1) * kHeads * kDim;
  expect_close(Floats(last, last + kDim), last_head(layer), 1e-5, "attention is wrong");
  check_candidates(layer, pool);
}

// -- company -------------------------------------------------------------------------------------

// What a thread did wrong is told to that thread.
void check_own_message(int caller) {
  const std::string name = "caller " + std::to_string(caller);
  if (chairlift_set_isa(name.c_str()) == CHAIRLIFT_OK) stop("there is an instruction set " + name);
  const std::string message = chairlift_last_error();
  if (message.find("'" + name + "'") == std::string::npos) stop("that is another's: " + message);
}

void run_at_once(int num_threads, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

void check_company(const Layer& layer, int rounds) {
  std::vector<Floats> alone;
  for (const auto& op : kCalls) alone.push_back(op.call(layer, Pool(1)));
  const auto call_all = [&](const Pool& pool, const char* where) {
    for (size_t i = 0; i < alone.size(); ++i) {
      if (kCalls[i].call(layer, pool) != alone[i]) stop(std::string(kCalls[i].name) + where);
    }
  };
  const Pool shared(3);
  run_at_once(4, [&](int caller) {
    for (int round = 0; round < rounds; ++round) {
      call_all(shared, " in a shared pool");
      check_own_message(caller);
    }
  });
  run_at_once(3, [&](int caller) {
    for (int round = 0; round < rounds; ++round) {
      const Pool unused(2), own(2 + caller);
      call_all(own, " in a pool of its own");
      // Workers fall asleep meanwhile; the next op, or the end of the pool, wakes them.
      std::this_thread::sleep_for(std::chrono::microseconds(100 * (round % 4)));
      if (round % 2 == 0) call_all(own, " after a rest");
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  // What is made once is made while all ask for it.
  run_at_once(4, [](int) {
    if (!*chairlift_isa() || !*chairlift_available_isas() || !*chairlift_levels(CHAIRLIFT_BYTES)) {
      stop("there is no arithmetic");
    }
    chairlift_processor();
  });
  std::string isas = chairlift_available_isas();
  while (!isas.empty()) {
    const std::string isa = isas.substr(0, isas.find(','));
    isas.erase(0, isa.size() + 1);
    check(chairlift_set_isa(isa.c_str()), "set_isa");
    const Layer layer;
    check_values(layer);
    check_company(layer, rounds);
    std::printf("%s: all calls agree\n", isa.c_str());
  }
}
