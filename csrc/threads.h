// A small thread pool: N - 1 workers and the caller share the items of one job.
//
// Items are claimed one by one from an atomic counter, so a core that the system takes away from a
// worker delays at most one item, and which thread computes an item is nobody's business.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chairlift {

class ThreadPool {
 public:
  // Computes one item.  `context` is the caller's.
  using Work = void (*)(const void* context, int64_t item);

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Returns when all items are done.  Calls from several threads take turns.
  void run(int64_t num_items, Work work, const void* context);

  template <typename Function>
  void for_each(int64_t num_items, const Function& function) {
    run(
        num_items,
        [](const void* context, int64_t item) { (*static_cast<const Function*>(context))(item); },
        &function);
  }

  int num_threads() const { return num_threads_; }

  // Which of `count` neighbours to work on as the `index`-th: threads that claim in turn are kept
  // far apart, for two that write to one cache line, or to a pair of lines fetched together, take
  // it from each other.
  int64_t spread(int64_t index, int64_t count) const {
    const int64_t part = index % num_threads_, longer = count % num_threads_;
    return part * (count / num_threads_) + (part < longer ? part : longer) + index / num_threads_;
  }

 private:
  struct Team;

  Team* team();  // null: there is no memory for one

  const int num_threads_;
  int64_t owner_ = 0;  // process that started the team
  Team* team_ = nullptr;
};

// Scratch memory of the calling thread, 64-byte aligned, valid until its next call; null if memory
// has run out.
float* thread_scratch(size_t num_floats);

}  // namespace chairlift
