#include "field.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "error.h"
#include "fit.h"
#include "model.h"
#include "session.h"
#include "without_signals.h"

namespace qcn {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kConfidenceBins = 20;  // of equal width, from 0 to 1
constexpr std::size_t kLatencyBins = 100;    // the i-th begins at 2^(i/4) microseconds: up to 28 seconds
constexpr std::size_t kPeriods = 336;        // the last ones, two weeks of hours
constexpr std::size_t kSlots = 4;            // pictures that wait to be written
constexpr std::chrono::seconds kBetweenWrites{60};

// Where each count is. Those of the classes follow.
enum Place : std::size_t { kAnswers, kUnknown, kUncertain, kLost, kConfidence };
constexpr std::size_t kLatency = kConfidence + kConfidenceBins, kClasses = kLatency + kLatencyBins;

using Counts = std::vector<std::uint64_t>;

struct Period {
  std::int64_t start, end;  // seconds since 1970
  Counts counts;
};

// A picture on its way to the thread that writes.
struct Slot {
  enum State { kFree, kFilling, kFull };
  std::atomic<int> state{kFree};
  std::string bytes, name;
};

std::int64_t now_in_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

// "20261119T013015123", which sorts by time.
std::string stamp(std::int64_t ms) {
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[48];
  std::snprintf(text, sizeof text, "%04d%02d%02dT%02d%02d%02d%03d", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                utc.tm_hour, utc.tm_min, utc.tm_sec, static_cast<int>(ms % 1000));
  return text;
}

std::string json_text(const std::string& text) {  // UTF-8, as a manifest is
  std::string escaped = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return escaped + "\"";
}

// "[3, 0, 1]"
std::string json_list(const Counts& counts, std::size_t first, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(counts[first + i]);
  return "[" + text + "]";
}

// {"0": 3, "2": 1}: those that are not 0, by index.
std::string json_sparse(const Counts& counts, std::size_t first, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (counts[first + i] == 0) continue;
    text += (text.empty() ? "\"" : ", \"") + std::to_string(i) + "\": " + std::to_string(counts[first + i]);
  }
  return "{" + text + "}";
}

std::string json_period(const Period& period) {
  const Counts& counts = period.counts;
  return "{\"start\": " + std::to_string(period.start) + ", \"end\": " + std::to_string(period.end) +
         ", \"answers\": " + std::to_string(counts[kAnswers]) + ", \"unknown\": " + std::to_string(counts[kUnknown]) +
         ", \"uncertain\": " + std::to_string(counts[kUncertain]) + ", \"lost\": " + std::to_string(counts[kLost]) +
         ", \"confidence\": " + json_list(counts, kConfidence, kConfidenceBins) +
         ", \"latency\": " + json_sparse(counts, kLatency, kLatencyBins) +
         ", \"classes\": " + json_sparse(counts, kClasses, counts.size() - kClasses) + "}";
}

std::size_t latency_bin(double seconds) {
  const double bin = 4 * std::log2(std::max(1e6 * seconds, 1.0));
  return static_cast<std::size_t>(std::min(bin, static_cast<double>(kLatencyBins - 1)));
}

// The picture as a PGM or PPM file; two views lie side by side. False for what is not in host memory, not of bytes, or
// larger than `most`.
bool picture_file(const qcn_image& image, std::size_t most, std::string& file) {
  const int views = image.channels == 2 ? 2 : 1, colours = image.channels >= 3 ? 3 : 1;
  const auto pixels = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height);
  const std::size_t bytes = pixels * static_cast<std::size_t>(views * colours);
  if (image.on_device || image.pixel != QCN_UINT8 || bytes > most) return false;
  file = (colours == 3 ? "P6\n" : "P5\n") + std::to_string(image.width * views) + " " + std::to_string(image.height) +
         "\n255\n";
  file.resize(file.size() + bytes);
  char* out = file.data() + file.size() - bytes;
  const Picture picture(image, views == 2 ? 2 : colours);
  const bool packed = image.channels == colours && image.column_stride == colours && !image.reverse_channels &&
                      (colours == 1 || image.channel_stride == 1);
  for (std::int64_t y = 0; y < image.height; ++y) {
    if (packed) {
      std::memcpy(out, picture.data + y * image.row_stride, static_cast<std::size_t>(image.width * colours));
      out += image.width * colours;
      continue;
    }
    for (int view = 0; view < views; ++view) {
      for (std::int64_t x = 0; x < image.width; ++x) {
        for (int colour = 0; colour < colours; ++colour) {
          *out++ = static_cast<char>(picture.at(views == 2 ? view : colour, y, x));
        }
      }
    }
  }
  return true;
}

// Put there whole or not at all, and readable for this user only: pictures show what the camera saw.
void write_file(const std::string& folder, const std::string& name, const std::string& bytes) {
  const std::string path = folder + "/" + name, aside = folder + "/." + name + ".tmp";
  const auto fail = [&](int error) {
    unlink(aside.c_str());
    throw Error(QCN_NO_FILE, path + " cannot be written: " + std::strerror(error));
  };
  const int file = open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) fail(errno);
  std::size_t done = 0;
  int error = 0;
  while (done < bytes.size() && !error) {
    const ssize_t written = write(file, bytes.data() + done, bytes.size() - done);
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (!error && fsync(file) != 0) error = errno;
  if (close(file) != 0 && !error) error = errno;
  if (!error && std::rename(aside.c_str(), path.c_str()) != 0) error = errno;
  if (error) fail(error);
}

class FolderField final : public Field {
 public:
  FolderField(const FieldRequest& request, const Model& model, Log log)
      : request_(request), log_(std::move(log)), counts_(kClasses + model.manifest.classes.size()) {
    const std::int64_t now = now_in_ms();
    start_ = now / 1000;
    static std::atomic<int> opened{0};
    id_ = std::to_string(getpid()) + "-" + std::to_string(opened++);
    file_ = "counts-" + stamp(now) + "-" + id_ + ".json";
    const Manifest& manifest = model.manifest;
    std::string classes;
    for (const std::string& name : manifest.classes) classes += (classes.empty() ? "" : ", ") + json_text(name);
    char below[32];
    std::snprintf(below, sizeof below, "%.17g", request.below);
    head_ = "{\"schema\": 1, \"libqcn\": " + json_text(qcn_version()) + ", \"name\": " + json_text(manifest.name) +
            ", \"manifest\": " + json_text(manifest.digest) + ", \"weights\": " + json_text(manifest.source_sha256) +
            ", \"backend\": " + json_text(model.backend_name) + ", \"precision\": " + json_text(model.precision) +
            ", \"classes\": [" + classes + "], \"below\": " + below + ", \"periods\": [\n";
    if (mkdir(request.folder.c_str(), 0700) != 0 && errno != EEXIST) {
      throw Error(QCN_NO_FILE, request.folder + " cannot be made: " + std::strerror(errno));
    }
    write_counts();
    start();
  }
  FolderField(const FolderField&) = delete;
  FolderField& operator=(const FolderField&) = delete;

  ~FolderField() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    writer_.join();
  }

  void record(const Decision* decisions, const qcn_image* images, int count, double seconds) noexcept override {
    const std::size_t bin = latency_bin(seconds / count);
    for (int i = 0; i < count; ++i) {
      const Decision& decision = decisions[i];
      const double confidence = decision.probability * static_cast<double>(kConfidenceBins);
      const auto sure = std::min(static_cast<std::size_t>(confidence), kConfidenceBins - 1);
      add(kAnswers);
      add(kConfidence + sure);
      add(kLatency + bin);
      add(kClasses + decision.index);
      if (!decision.known) add(kUnknown);
      if (decision.known && decision.probability >= request_.below) continue;
      add(kUncertain);
      if (request_.pictures > 0 && due()) keep(image_at(images, i), decision);
    }
    if (failed_.load(std::memory_order_relaxed) && failed_.exchange(false) && log_) {
      try {
        log_(QCN_LOG_WARNING, "counts or pictures of the field cannot be written to " + request_.folder +
                                  ": is the disk full? It will be tried again");
      } catch (...) {  // of the program's function, or no memory: an answer must not fail for it
      }
    }
  }

 private:
  void add(std::size_t place) noexcept { counts_[place].fetch_add(1, std::memory_order_relaxed); }

  // Whether the last picture that was kept is long enough ago; then this one takes its place.
  bool due() noexcept {
    const std::int64_t now = now_in_ms();
    std::int64_t next = next_ms_.load(std::memory_order_relaxed);
    return now >= next && next_ms_.compare_exchange_strong(next, now + static_cast<std::int64_t>(1000 * request_.gap));
  }

  // Copies a picture into a free slot, where there is one.
  void keep(const qcn_image& image, const Decision& decision) noexcept {
    for (Slot& slot : slots_) {
      int free = Slot::kFree;
      if (!slot.state.compare_exchange_strong(free, Slot::kFilling, std::memory_order_acquire)) continue;
      bool copied = false;
      try {
        copied = picture_file(image, static_cast<std::size_t>(request_.most_bytes / 4), slot.bytes);
        if (copied) {
          slot.name = "uncertain-" + stamp(now_in_ms()) + "-" + id_ + "-" + std::to_string(decision.index) + "-" +
                      std::to_string(static_cast<int>(1000 * decision.probability)) +
                      (decision.known ? "-known" : "-unknown") + (image.channels >= 3 ? ".ppm" : ".pgm");
        }
      } catch (...) {  // no memory: the picture is lost, the answer is not
        copied = false;
      }
      slot.state.store(copied ? Slot::kFull : Slot::kFree, std::memory_order_release);
      if (!copied) add(kLost);
      wake_.notify_one();
      return;
    }
    add(kLost);
  }

  void start() {
    try {
      const WithoutSignals none;
      writer_ = std::thread([this] { write_until_ended(); });
    } catch (const std::system_error&) {
      throw Error(QCN_NO_MEMORY, "there is no thread for what writes to " + request_.folder);
    }
  }

  void write_until_ended() noexcept {
    const auto between = std::min<std::chrono::milliseconds>(kBetweenWrites, std::chrono::seconds(request_.period));
    auto next = steady_clock::now() + between;
    for (bool ended = false; !ended;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        // Slots are looked at once a second: who fills one does not take the lock, so its call may come too early.
        wake_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_ || waiting(); });
        ended = ended_;
      }
      try {
        const bool written = write_pictures();
        if (ended || steady_clock::now() >= next) {
          write_counts();
          next = steady_clock::now() + between;
        }
        if (written || ended) tidy();
      } catch (...) {  // told by record; counts are kept for the next time
        failed_.store(true);
      }
    }
  }

  bool waiting() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state == Slot::kFull; });
  }

  bool write_pictures() {
    bool written = false;
    for (Slot& slot : slots_) {
      if (slot.state.load(std::memory_order_acquire) != Slot::kFull) continue;
      const std::string bytes = std::move(slot.bytes), name = std::move(slot.name);
      slot.state.store(Slot::kFree, std::memory_order_release);
      write_file(request_.folder, name, bytes);
      written = true;
    }
    return written;
  }

  // Takes what was counted since the last time into the current period, and writes all periods.
  void write_counts() {
    const std::int64_t now = now_in_ms() / 1000;
    if (periods_.empty() || now - periods_.back().start >= request_.period) {
      periods_.push_back({periods_.empty() ? start_ : now, now, Counts(counts_.size())});
      if (periods_.size() > kPeriods) periods_.pop_front();
    }
    Period& period = periods_.back();
    period.end = std::max(period.end, now);
    for (std::size_t i = 0; i < counts_.size(); ++i) period.counts[i] += counts_[i].exchange(0);
    std::string text = head_;
    for (std::size_t i = 0; i < periods_.size(); ++i) text += (i ? ",\n" : "") + json_period(periods_[i]);
    write_file(request_.folder, file_, text + "\n]}\n");
  }

  // Deletes the oldest pictures beyond the number that is kept, and the oldest files while all are too large.
  void tidy() const {
    struct File {
      std::string name;
      std::int64_t bytes;
    };
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(request_.folder.c_str()), closedir);
    if (!folder) throw Error(QCN_NO_FILE, request_.folder + " cannot be read: " + std::strerror(errno));
    const int descriptor = dirfd(folder.get());
    std::vector<File> pictures, counts;
    std::int64_t bytes = 0;
    while (const dirent* entry = readdir(folder.get())) {
      const std::string name = entry->d_name;
      const std::string finished = name.front() == '.' ? name.substr(1) : name;  // or a program that was killed wrote it
      const bool picture = finished.rfind("uncertain-", 0) == 0;
      if (!picture && finished.rfind("counts-", 0) != 0) continue;
      struct stat status;  // fails if another program that shares the folder was faster
      if (fstatat(descriptor, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      bytes += status.st_size;
      if (finished != file_) (picture && name == finished ? pictures : counts).push_back({name, status.st_size});
    }
    const auto remove = [&](std::vector<File>& files, std::size_t most) {
      std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.name < b.name; });
      std::size_t left = files.size();
      for (const File& file : files) {
        if (left-- <= most && bytes <= request_.most_bytes) return;
        if (unlinkat(descriptor, file.name.c_str(), 0) == 0) bytes -= file.bytes;
      }
    };
    remove(pictures, static_cast<std::size_t>(request_.pictures));
    remove(counts, counts.size());
  }

  const FieldRequest request_;
  const Log log_;
  std::vector<std::atomic<std::uint64_t>> counts_;  // since the last time that they were written
  std::array<Slot, kSlots> slots_;
  std::atomic<std::int64_t> next_ms_{0};
  std::atomic<bool> failed_{false};

  std::string id_;  // of this process, and of this model in it

  // Of the thread that writes.
  std::string file_, head_;
  std::int64_t start_ = 0;
  std::deque<Period> periods_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread writer_;
};

}  // namespace

std::unique_ptr<Field> open_field(const FieldRequest& request, const Model& model, Log log) {
  if (request.folder.empty()) return nullptr;
  return std::make_unique<FolderField>(request, model, std::move(log));
}

}  // namespace qcn
