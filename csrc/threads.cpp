#include "threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(_WIN32)
#include <process.h>
#else
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#endif

#if defined(__linux__)
#include <sched.h>
#endif

#if defined(CHAIRLIFT_X86)
#include <immintrin.h>
#endif

namespace chairlift {
namespace {

// How long an idle worker stays awake for the next op of the same step before it sleeps.
constexpr std::chrono::microseconds kSpin{50};

void pause() {
#if defined(CHAIRLIFT_X86)
  _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
  __asm__ volatile("yield");
#endif
}

int64_t current_process() {
#if defined(_WIN32)
  return _getpid();
#else
  return getpid();
#endif
}

// Spins until `ready` or until kSpin has passed; `idle` does something useful meanwhile, or pauses.
template <typename Ready, typename Idle>
bool spin_until(const Ready& ready, const Idle& idle) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      idle();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

// Fetches one thread's part of what is expected, a few lines at a time.
class Fetcher {
 public:
  void fetch(const uint8_t* memory, int64_t num_bytes, int index, int num_threads) {
    if (memory != memory_) {
      memory_ = memory;
      const int64_t begin = num_bytes * index / num_threads,
                    end = num_bytes * (index + 1) / num_threads;
      next_ = memory + begin / kLine * kLine;
      left_ = end - begin < kMostBytes ? end - begin : kMostBytes;
    }
    if (left_ <= 0) return pause();
    for (int i = 0; i < kLinesAtOnce; ++i) prefetch(next_ + i * kLine);
    next_ += kLinesAtOnce * kLine;
    left_ -= kLinesAtOnce * kLine;
  }

 private:
  static constexpr int64_t kLine = 64, kLinesAtOnce = 4;
  static constexpr int64_t kMostBytes = 393216;  // well below a core's own cache

  static void prefetch(const uint8_t* p) {
#if defined(__GNUC__)
    __builtin_prefetch(p, 0, 2);
#else
    (void)p;
#endif
  }

  const uint8_t* memory_ = nullptr;
  const uint8_t* next_ = nullptr;
  int64_t left_ = 0;
};

// Signals belong to the threads of the host program: workers are born with all of them blocked.
class BlockSignals {
 public:
#if defined(_WIN32)
  BlockSignals() {}
#else
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#endif
};

// Taken while a team is started.  A fork waits for that, or the child, where the starting thread
// does not exist, would find it taken for ever.
std::mutex start_mutex;

#if !defined(_WIN32)
[[maybe_unused]] const int fork_handlers = pthread_atfork(
    [] { start_mutex.lock(); }, [] { start_mutex.unlock(); }, [] { start_mutex.unlock(); });
#endif

}  // namespace

// A job is (work, context, num_items).  Each part of it has a ticket of its own: the job's
// generation in the upper half, the next item in the lower one.  A claim is a compare-and-swap on
// both.  The fields change only while the tickets are closed, so a worker that slept through a job
// can neither claim from the next one with the old fields nor from the old one with the new fields.
struct ThreadPool::Team {
  static constexpr int64_t kMaxItems = 0xffffffff;

  explicit Team(int num_threads) : num_threads_(num_threads), parts_(new Part[num_threads]) {
    BlockSignals block;
    workers_.reserve(num_threads - 1);
    for (int i = 1; i < num_threads; ++i) {
      try {
        workers_.emplace_back([this, i] { work_until_stopped(i); });
      } catch (const std::exception&) {
        break;  // fewer workers compute the same results
      }
    }
  }

  ~Team() {
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void run(int64_t num_items, Work work, const void* context, const Upcoming* upcoming) {
    std::lock_guard<std::mutex> turn(turn_mutex_);
    keep_workers_off_this_core();
    const uint64_t closed = generation_.load(std::memory_order_relaxed) + 1, open = closed + 1;
    for (int i = 0; i < num_threads_; ++i) {
      parts_[i].ticket.store((closed << 32) | kClosed, std::memory_order_release);
    }
    work_.store(work, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    num_done_.store(0, std::memory_order_relaxed);
    if (upcoming) {
      upcoming_bytes_.store(upcoming->num_bytes, std::memory_order_relaxed);
      upcoming_.store(upcoming->memory, std::memory_order_release);
    }
    for (int i = 0; i < num_threads_; ++i) {
      const int64_t begin = num_items * i / num_threads_, end = num_items * (i + 1) / num_threads_;
      parts_[i].end.store(static_cast<uint32_t>(end), std::memory_order_release);
      parts_[i].ticket.store((open << 32) | static_cast<uint64_t>(begin),
                             std::memory_order_release);
    }
    generation_.store(static_cast<uint32_t>(open), std::memory_order_seq_cst);
    if (num_sleepers_.load(std::memory_order_seq_cst) > 0) {
      {
        std::lock_guard<std::mutex> lock(sleep_mutex_);
      }
      wake_.notify_all();
    }
    claim_and_work(0);
    const auto done = [&] { return num_done_.load(std::memory_order_acquire) == num_items; };
    if (!spin_until(done, [this] { fetch_upcoming(0, &caller_fetcher_); })) {
      while (!done()) std::this_thread::yield();  // give a pre-empted worker its core back
    }
  }

 private:
  // A worker that wakes on the caller's core waits there for some ten milliseconds, until the
  // system's balancing moves it: longer than most jobs.  The caller alone knows where it is, and
  // that changes seldom.
  void keep_workers_off_this_core() {
#if defined(__linux__)
    const int core = sched_getcpu();
    if (core == caller_core_ || core < 0 || core >= CPU_SETSIZE) return;
    cpu_set_t others;
    if (sched_getaffinity(0, sizeof others, &others) != 0) return;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (std::thread& worker : workers_) {
      pthread_setaffinity_np(worker.native_handle(), sizeof others, &others);
    }
    caller_core_ = core;
#endif
  }

  static constexpr uint64_t kClosed = kMaxItems;  // an item number that no job reaches

  struct alignas(64) Part {
    std::atomic<uint64_t> ticket{kClosed};
    std::atomic<uint32_t> end{0};
  };

  // Its own part first, then what is left of the others'.
  void claim_and_work(int index) {
    int64_t num_done = 0;
    for (int i = 0; i < num_threads_; ++i) {
      const int part = index + i < num_threads_ ? index + i : index + i - num_threads_;
      num_done += claim_of(parts_[part]);
    }
    if (num_done > 0) num_done_.fetch_add(num_done, std::memory_order_release);
  }

  int64_t claim_of(Part& part) {
    int64_t num_done = 0;
    uint64_t ticket = part.ticket.load(std::memory_order_acquire);
    while (true) {
      const Work work = work_.load(std::memory_order_acquire);
      const void* context = context_.load(std::memory_order_acquire);
      const uint32_t item = static_cast<uint32_t>(ticket);
      if (item >= part.end.load(std::memory_order_acquire)) return num_done;
      if (!part.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire)) {
        continue;
      }
      work(context, item);
      ++num_done;
      ticket = part.ticket.load(std::memory_order_acquire);
    }
  }

  void fetch_upcoming(int index, Fetcher* fetcher) {
    const uint8_t* memory = upcoming_.load(std::memory_order_acquire);
    if (!memory) return pause();
    fetcher->fetch(memory, upcoming_bytes_.load(std::memory_order_relaxed), index, num_threads_);
  }

  void work_until_stopped(int index) {
    uint32_t seen = 0;
    Fetcher fetcher;
    while (true) {
      const auto has_job = [&] { return generation_.load(std::memory_order_seq_cst) != seen; };
      if (!spin_until(has_job, [&] { fetch_upcoming(index, &fetcher); })) {
        std::unique_lock<std::mutex> lock(sleep_mutex_);
        num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return stop_ || has_job(); });
        num_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        if (stop_) return;
      }
      seen = generation_.load(std::memory_order_seq_cst);
      claim_and_work(index);
    }
  }

  const int num_threads_;
  std::unique_ptr<Part[]> parts_;
  std::mutex turn_mutex_;
  int caller_core_ = -1;
  std::atomic<Work> work_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<const uint8_t*> upcoming_{nullptr};
  std::atomic<int64_t> upcoming_bytes_{0};
  Fetcher caller_fetcher_;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};

  alignas(64) std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> num_sleepers_{0};
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {}

ThreadPool::~ThreadPool() {
  // In a child of fork the workers do not exist: joining them would wait for ever.
  if (team_ && owner_ == current_process()) delete team_;
}

ThreadPool::Team* ThreadPool::team() {
  std::lock_guard<std::mutex> lock(start_mutex);
  if (!team_ || owner_ != current_process()) {
    try {
      team_ = new Team(num_threads_);  // the parent's team, if any, is not ours to free
    } catch (const std::exception&) {
      return nullptr;
    }
    owner_ = current_process();
  }
  return team_;
}

void ThreadPool::run(int64_t num_items, Work work, const void* context, const Upcoming* upcoming) {
  const bool shared = num_threads_ > 1 && num_items > 1 && num_items < Team::kMaxItems;
  if (Team* const members = shared ? team() : nullptr) {
    members->run(num_items, work, context, upcoming);
  } else {
    for (int64_t item = 0; item < num_items; ++item) work(context, item);
  }
}

float* thread_scratch(size_t num_floats) {
  struct Scratch {
    std::unique_ptr<unsigned char[]> memory;
    size_t num_floats = 0;
  };
  constexpr size_t kAlignment = 64;
  static thread_local Scratch scratch;
  if (!scratch.memory || scratch.num_floats < num_floats) {
    scratch.memory.reset();
    scratch.num_floats = 0;
    scratch.memory.reset(new (std::nothrow) unsigned char[num_floats * sizeof(float) + kAlignment]);
    if (!scratch.memory) return nullptr;
    scratch.num_floats = num_floats;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(scratch.memory.get());
  return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace chairlift
