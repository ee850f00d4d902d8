// The C functions called from several threads at once, compared to the bit with the same calls made
// alone; and those, to tolerance, with plain loops.  Needs no Python, so that sanitizers see every
// access and emulators need nothing else.
//
//   threads_test [rounds]
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
constexpr int64_t kQkvWidth = (kHeads + 2 * kKvHeads) * kDim;

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

// A layer's weights and a step's inputs: shared by all threads, never written to.
struct Layer {
  Batch batch;
  Floats x = numbers(kTokens * kHidden, 1), norm = numbers(kHidden, 2);
  Floats cos = numbers(kMaxPosition * kDim / 2, 3), sin = numbers(kMaxPosition * kDim / 2, 4);
  Floats kv = numbers(kBlocks * 2 * kBlockSize * kKvHeads * kDim, 5);
  Floats query = numbers(kTokens * kHeads * kDim, 6);
  Matrix qkv = pack(kQkvWidth, kHidden, 0, 7), output = pack(kHidden, kHeads* kDim, 0, 8);
  Matrix gate_up = pack(2 * kInner, kHidden, 16, 9), down = pack(kHidden, kInner, 0, 10);
  Floats packed = Floats(static_cast<size_t>(chairlift_linear_f32_size(kInner + 1, kHidden)));
  Floats matrix = numbers((kInner + 1) * kHidden, 11);
  std::vector<uint8_t> cache;

  Layer() {
    const Pool pool(2);
    check(chairlift_linear_f32_pack(pool.get(), matrix.data(), kInner + 1, kHidden, packed.data()),
          "pack floats");
    cache.resize(static_cast<size_t>(kBlocks * piece_bytes()));
    fill_cache(pool);
  }

  static int64_t piece_bytes() {
    return chairlift_kv_piece_bytes(CHAIRLIFT_KV_INT8, kBlockSize, kKvHeads, kDim);
  }

  chairlift_qkv_to_cache store_task(uint8_t* kv_cache) const {
    chairlift_qkv_to_cache task = {};
    task.struct_size = sizeof task;
    task.cos = cos.data();
    task.sin = sin.data();
    task.positions = batch.positions.data();
    task.slots = batch.slots.data();
    task.kv_cache = kv_cache;
    task.block_stride = piece_bytes();
    task.num_blocks = kBlocks;
    task.num_tokens = kTokens;
    task.max_position = kMaxPosition;
    task.block_size = kBlockSize;
    task.num_heads = kHeads;
    task.num_kv_heads = kKvHeads;
    task.head_dim = kDim;
    task.rope_dim = kDim;
    task.norm_eps = 1e-5f;
    return task;
  }

  // Every slot holds a token.
  void fill_cache(const Pool& pool) {
    const int64_t slots_in_all = kBlocks * kBlockSize;
    const Floats tokens = numbers(slots_in_all * kQkvWidth, 12);
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < slots_in_all; ++i) slots.push_back(i);
    const Integers positions(static_cast<size_t>(slots_in_all), 0);
    std::vector<int8_t> codes(static_cast<size_t>(slots_in_all * kHeads * kDim));
    Floats scales(static_cast<size_t>(slots_in_all * kHeads));
    chairlift_qkv_to_cache task = store_task(cache.data());
    task.qkv = tokens.data();
    task.positions = positions.data();
    task.slots = slots.data();
    task.query = codes.data();
    task.query_scales = scales.data();
    task.num_tokens = slots_in_all;
    check(chairlift_qkv_to_cache_int8(pool.get(), &task), "fill the cache");
  }
};

// -- the calls -----------------------------------------------------------------------------------

Floats linear_f32(const Layer& layer, const Pool& pool) {
  Floats out(static_cast<size_t>(kTokens * (kInner + 1)));
  check(chairlift_linear_f32(pool.get(), layer.x.data(), kTokens, layer.packed.data(), nullptr,
                             kInner + 1, kHidden, out.data()),
        "linear_f32");
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

Floats attention_f32(const Layer& layer, const Pool& pool) {
  Floats out(layer.query.size());
  chairlift_attention task = {};
  task.struct_size = sizeof task;
  task.query = layer.query.data();
  task.out = out.data();
  task.kv_cache = layer.kv.data();
  task.block_stride = 2 * kBlockSize * kKvHeads * kDim;
  task.value_offset = kBlockSize * kKvHeads * kDim;
  task.token_stride = kKvHeads * kDim;
  task.num_blocks = kBlocks;
  task.query_start = layer.batch.query_start.data();
  task.context_lens = layer.batch.context_lens.data();
  task.block_tables = layer.batch.tables.data();
  task.positions = layer.batch.positions.data();
  task.num_tokens = kTokens;
  task.num_sequences = 2;
  task.max_blocks = kBlocks;
  task.block_size = kBlockSize;
  task.num_heads = kHeads;
  task.num_kv_heads = kKvHeads;
  task.head_dim = kDim;
  task.scale = 0.2f;
  check(chairlift_paged_attention_f32(pool.get(), &task), "attention_f32");
  return out;
}

Floats attention_block(const Layer& layer, const Pool& pool) {
  std::vector<uint8_t> cache = layer.cache;  // this call writes to it
  Floats out(static_cast<size_t>(kTokens * kHidden));
  chairlift_attention_block block = {};
  block.struct_size = sizeof block;
  block.x = layer.x.data();
  block.out = out.data();
  block.norm = layer.norm.data();
  block.qkv = layer.qkv.packed.data();
  block.output = layer.output.packed.data();
  block.store = layer.store_task(cache.data());
  chairlift_attention_int8& task = block.attention;
  task.struct_size = sizeof task;
  task.kv_cache = cache.data();
  task.query_start = layer.batch.query_start.data();
  task.context_lens = layer.batch.context_lens.data();
  task.block_tables = layer.batch.tables.data();
  task.block_stride = block.store.block_stride;
  task.num_blocks = kBlocks;
  task.num_tokens = kTokens;
  task.num_sequences = 2;
  task.max_blocks = kBlocks;
  task.block_size = kBlockSize;
  task.num_heads = kHeads;
  task.num_kv_heads = kKvHeads;
  task.head_dim = kDim;
  task.scale = 0.2f;
  check(chairlift_attention_block_int8(pool.get(), &block), "attention_block");
  return out;
}

constexpr struct {
  const char* name;
  Floats (*call)(const Layer& layer, const Pool& pool);
} kCalls[] = {
    {"linear_f32", linear_f32},
    {"linear_q8", linear_q8},
    {"rows_q8", rows_q8},
    {"mlp_q8", mlp_q8},
    {"attention_f32", attention_f32},
    {"attention_block", attention_block},
};

// -- what they should give -----------------------------------------------------------------------

// The last token's first head, the plain way.
Floats last_head(const Layer& layer) {
  const int64_t context = layer.batch.context_lens[1], token = kKvHeads * kDim;
  const float* query = layer.query.data() + (kTokens - 1) * kHeads * kDim;
  const auto key_at = [&](int64_t position) {
    const int64_t block = layer.batch.tables[kBlocks + position / kBlockSize];
    return layer.kv.data() + block * 2 * kBlockSize * token + position % kBlockSize * token;
  };
  std::vector<double> sums(kDim, 0.0);
  double total = 0;
  for (int64_t position = 0; position < context; ++position) {
    double score = 0;
    for (int64_t i = 0; i < kDim; ++i) score += query[i] * key_at(position)[i];
    const double weight = std::exp(score * 0.2);
    total += weight;
    for (int64_t i = 0; i < kDim; ++i) sums[i] += weight * key_at(position)[kBlockSize * token + i];
  }
  Floats result;
  for (const double sum : sums) result.push_back(static_cast<float>(sum / total));
  return result;
}

void check_values(const Layer& layer) {
  const Pool pool(1);
  expect_close(linear_f32(layer, pool), multiply(layer.x, layer.matrix, kHidden), 1e-5,
               "linear_f32 is not the product");
  expect_close(rows_q8(layer, pool), layer.qkv.weights, 1e-6, "rows_q8 are not the rows");
  expect_close(linear_q8(layer, pool), multiply(layer.x, layer.qkv.weights, kHidden), 0.02,
               "linear_q8 is far from the product");
  const Floats attended = attention_f32(layer, pool);
  const auto last = attended.begin() + (kTokens - 1) * kHeads * kDim;
  expect_close(Floats(last, last + kDim), last_head(layer), 1e-5, "attention_f32 is wrong");
}

// -- company -------------------------------------------------------------------------------------

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
  run_at_once(4, [&](int) {
    for (int round = 0; round < rounds; ++round) call_all(shared, " in a shared pool");
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
