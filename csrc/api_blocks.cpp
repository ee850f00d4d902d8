// Halves of layers, many in one call: what lies between their parts stays here.
#include "api.h"
#include "arguments.h"
#include "linear_q8.h"

namespace chairlift {
namespace {

thread_local RowBuffer qkv_rows, query_rows, attended_rows;

int32_t check_shapes(const chairlift_attention_block& block, const PackedQ8& qkv,
                     const PackedQ8& output) {
  const chairlift_qkv_to_cache& store = *block.store;
  const chairlift_attention& attention = *block.attention;
  if (store.struct_size != static_cast<int64_t>(sizeof(store)) ||
      attention.struct_size != static_cast<int64_t>(sizeof(attention))) {
    return invalid("attention_block: the caller was built for another version");
  }
  const int64_t float_bytes = static_cast<int64_t>(sizeof(float));
  if (store.num_heads < 1 || store.num_kv_heads < 1 || store.head_dim < 1 ||
      !fit_memory({store.num_heads, store.head_dim, float_bytes}) ||
      !fit_memory({store.num_kv_heads, store.head_dim, float_bytes}) ||
      !fit_memory({store.num_tokens, qkv.in_features, float_bytes}) ||
      !fit_memory({store.num_tokens, qkv.out_features, float_bytes})) {
    return invalid("attention_block: a size is out of range");
  }
  if (store.num_tokens != attention.num_tokens || store.num_heads != attention.num_heads ||
      store.num_kv_heads != attention.num_kv_heads || store.head_dim != attention.head_dim ||
      store.block_size != attention.block_size || store.kv_type != attention.kv_type) {
    return invalid("attention_block: what is stored is not what is read");
  }
  const int64_t width = store.num_heads * store.head_dim;
  if (qkv.interleave != 0 || output.interleave != 0 ||
      qkv.out_features != width + 2 * store.num_kv_heads * store.head_dim ||
      output.in_features != width || output.out_features != qkv.in_features) {
    return invalid("attention_block: the matrices do not fit the heads");
  }
  return CHAIRLIFT_OK;
}

int32_t run_attention(chairlift_pool* pool, const chairlift_attention_block& block,
                      const Q8Linear& qkv, const Q8Linear& output, const PackedQ8* next) {
  chairlift_qkv_to_cache store = *block.store;
  chairlift_attention attention = *block.attention;
  const int64_t tokens = store.num_tokens, heads = tokens * store.num_heads;
  const int64_t width = store.num_heads * store.head_dim;
  const int64_t float_bytes = static_cast<int64_t>(sizeof(float));
  const bool is_bytes = store.kv_type == CHAIRLIFT_KV_INT8;
  const int64_t query_bytes = round_up(heads * store.head_dim * (is_bytes ? 1 : float_bytes), 64);
  float* joint =
      reinterpret_cast<float*>(qkv_rows.get(tokens * qkv.weight->out_features * float_bytes));
  uint8_t* query = query_rows.get(query_bytes + heads * float_bytes);
  float* attended = reinterpret_cast<float*>(attended_rows.get(tokens * width * float_bytes));
  if (!joint || !query || !attended) return out_of_memory();
  store.q_norm = block.q_norm;
  store.k_norm = block.k_norm;
  store.kv_cache = block.kv_cache;
  store.qkv = joint;
  store.query = query;
  store.query_scales = reinterpret_cast<float*>(query + query_bytes);
  attention.kv_cache = block.kv_cache;
  attention.query = query;
  attention.query_scales = store.query_scales;
  attention.out = attended;
  const Q8Input input = {block.x, tokens, block.norm, store.norm_eps};
  int32_t status = linear_q8(pool->threads, input, qkv, nullptr, joint, output.weight);
  if (status == CHAIRLIFT_OK) status = chairlift_store_qkv(pool, &store);
  if (status == CHAIRLIFT_OK) status = chairlift_paged_attention(pool, &attention);
  if (status != CHAIRLIFT_OK) return status;
  return linear_q8(pool->threads, {attended, tokens, nullptr, 0.0f}, output, block.x, block.out,
                   next);
}

int32_t attention_block(chairlift_pool* pool, const chairlift_attention_block& block,
                        const PackedQ8* next) {
  if (block.struct_size != static_cast<int64_t>(sizeof(block))) {
    return invalid("attention_block: the caller was built for another version");
  }
  if (!block.x || !block.out || !block.norm || !block.qkv || !block.output || !block.kv_cache ||
      !block.store || !block.attention) {
    return invalid("attention_block: a pointer is null");
  }
  if (!all_aligned(block.x, block.out, block.norm, block.qkv_bias, block.output_bias, block.store,
                   block.attention)) {
    return invalid("attention_block: a pointer is not aligned");
  }
  if (block.x == block.out) return invalid("attention_block: out must not be x");
  const PackedQ8 *qkv = as_packed(block.qkv), *output = as_packed(block.output);
  if (!qkv || !output) {
    return invalid("attention_block: these weights were not packed by this library");
  }
  const int32_t status = check_shapes(block, *qkv, *output);
  if (status != CHAIRLIFT_OK) return status;
  return run_attention(pool, block, {qkv, block.qkv_bias}, {output, block.output_bias}, next);
}

int32_t mlp_block(chairlift_pool* pool, const chairlift_mlp_block& block, const PackedQ8* next) {
  if (block.struct_size != static_cast<int64_t>(sizeof(block))) {
    return invalid("mlp_block: the caller was built for another version");
  }
  if (!block.norm) return invalid("mlp_block: a pointer is null");
  return checked_mlp_q8(pool, {block.x, block.rows, block.norm, block.eps}, block.gate_up,
                        block.gate_up_bias, block.down, block.down_bias, block.x, block.out, next);
}

// The matrix that a block begins with; null if the block is not in order, as it will say itself.
const PackedQ8* first_matrix(const chairlift_block& block) {
  const void* matrix = nullptr;
  if (block.attention && all_aligned(block.attention) &&
      block.attention->struct_size == static_cast<int64_t>(sizeof *block.attention)) {
    matrix = block.attention->qkv;
  } else if (block.mlp && all_aligned(block.mlp) &&
             block.mlp->struct_size == static_cast<int64_t>(sizeof *block.mlp)) {
    matrix = block.mlp->gate_up;
  }
  return matrix ? as_packed(matrix) : nullptr;
}

}  // namespace
}  // namespace chairlift

extern "C" int32_t chairlift_run_blocks(chairlift_pool* pool, const chairlift_block* blocks,
                                        int64_t num_blocks) {
  using chairlift::invalid;
  if (!pool || (!blocks && num_blocks > 0)) return invalid("run_blocks: a pointer is null");
  if (!chairlift::all_aligned(blocks)) return invalid("run_blocks: a pointer is not aligned");
  if (!chairlift::fit_memory({num_blocks, static_cast<int64_t>(sizeof *blocks)})) {
    return invalid("run_blocks: num_blocks is out of range");
  }
  for (int64_t i = 0; i < num_blocks; ++i) {
    const chairlift_block& block = blocks[i];
    if (!block.attention == !block.mlp) {
      return invalid("run_blocks: a block must be one or the other");
    }
    if (!chairlift::all_aligned(block.attention, block.mlp)) {
      return invalid("run_blocks: a pointer is not aligned");
    }
    const chairlift::PackedQ8* next =
        i + 1 < num_blocks ? chairlift::first_matrix(blocks[i + 1]) : nullptr;
    const int32_t status = block.attention
                               ? chairlift::attention_block(pool, *block.attention, next)
                               : chairlift::mlp_block(pool, *block.mlp, next);
    if (status != CHAIRLIFT_OK) return status;
  }
  return CHAIRLIFT_OK;
}
