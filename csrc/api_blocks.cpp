// Half of a layer in one call: what lies between its parts stays here.
#include "api.h"
#include "arguments.h"
#include "linear_q8.h"

namespace chairlift {
namespace {

thread_local RowBuffer qkv_rows, query_rows, attended_rows;

int32_t check_shapes(const chairlift_attention_block& block, const PackedQ8& qkv,
                     const PackedQ8& output) {
  const chairlift_qkv_to_cache& store = block.store;
  const chairlift_attention_int8& attention = block.attention;
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
      store.block_size != attention.block_size) {
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

int32_t run_block(chairlift_pool* pool, const chairlift_attention_block& block, const Q8Linear& qkv,
                  const Q8Linear& output) {
  chairlift_qkv_to_cache store = block.store;
  chairlift_attention_int8 attention = block.attention;
  const int64_t tokens = store.num_tokens, heads = tokens * store.num_heads;
  const int64_t width = store.num_heads * store.head_dim;
  const int64_t float_bytes = static_cast<int64_t>(sizeof(float));
  const int64_t code_bytes = round_up(heads * store.head_dim, 64);
  float* joint =
      reinterpret_cast<float*>(qkv_rows.get(tokens * qkv.weight->out_features * float_bytes));
  uint8_t* query = query_rows.get(code_bytes + heads * float_bytes);
  float* attended = reinterpret_cast<float*>(attended_rows.get(tokens * width * float_bytes));
  if (!joint || !query || !attended) return out_of_memory();
  store.qkv = joint;
  store.query = reinterpret_cast<int8_t*>(query);
  store.query_scales = reinterpret_cast<float*>(query + code_bytes);
  attention.query = store.query;
  attention.query_scales = store.query_scales;
  attention.out = attended;
  const Q8Input input = {block.x, tokens, block.norm, store.norm_eps};
  int32_t status = linear_q8(pool->threads, input, qkv, nullptr, joint);
  if (status == CHAIRLIFT_OK) status = chairlift_qkv_to_cache_int8(pool, &store);
  if (status == CHAIRLIFT_OK) status = chairlift_paged_attention_int8(pool, &attention);
  if (status != CHAIRLIFT_OK) return status;
  return linear_q8(pool->threads, {attended, tokens, nullptr, 0.0f}, output, block.x, block.out);
}

}  // namespace
}  // namespace chairlift

extern "C" int32_t chairlift_attention_block_int8(chairlift_pool* pool,
                                                  const chairlift_attention_block* block) {
  using chairlift::invalid;
  if (!pool || !block) return invalid("attention_block: a pointer is null");
  if (!chairlift::all_aligned(block)) return invalid("attention_block: a pointer is not aligned");
  if (block->struct_size != static_cast<int64_t>(sizeof(*block))) {
    return invalid("attention_block: the caller was built for another version");
  }
  if (!block->x || !block->out || !block->norm || !block->qkv || !block->output) {
    return invalid("attention_block: a pointer is null");
  }
  if (!chairlift::all_aligned(block->x, block->out, block->norm, block->qkv_bias,
                              block->output_bias)) {
    return invalid("attention_block: a pointer is not aligned");
  }
  if (block->x == block->out) return invalid("attention_block: out must not be x");
  const chairlift::PackedQ8* qkv = chairlift::as_packed(block->qkv);
  const chairlift::PackedQ8* output = chairlift::as_packed(block->output);
  if (!qkv || !output) {
    return invalid("attention_block: these weights were not packed by this library");
  }
  const int32_t status = chairlift::check_shapes(*block, *qkv, *output);
  if (status != CHAIRLIFT_OK) return status;
  return chairlift::run_block(pool, *block, {qkv, block->qkv_bias}, {output, block->output_bias});
}
