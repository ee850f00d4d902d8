// A small thread pool: N - 1 workers and the caller share the items of one job.
//
// Each thread has a part of the items, one after the other, and claims them one by one; then it
// helps with the others' parts.  So a core that the system takes away from a thread delays at most
// one item, which thread computes an item is nobody's business, and yet a thread mostly meets the
// same part of its memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chairlift {

class ThreadPool {
 public:
  // Computes one item.  `context` is the caller's.
  using Work = void (*)(const void* context, int64_t item);

  // What a later job will read: threads that have nothing to do fetch the beginning of their part
  // of it into their caches.
  struct Upcoming {
    const uint8_t* memory;  // may be null
    int64_t num_bytes;
  };

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Returns when all items are done.  Calls from several threads take turns.  Without `upcoming`
  // things stay as the job before has said.
  void run(int64_t num_items, Work work, const void* context, const Upcoming* upcoming = nullptr);

  template <typename Function>
  void for_each(int64_t num_items, const Function& function, const Upcoming* upcoming = nullptr) {
    run(
        num_items,
        [](const void* context, int64_t item) { (*static_cast<const Function*>(context))(item); },
        &function, upcoming);
  }

  int num_threads() const { return num_threads_; }

  // Where the part of thread `index` begins.
  int64_t part_begin(int64_t num_items, int64_t index) const {
    return num_items * index / num_threads_;
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
