// qcn-bench: how long a bundle's network takes on this machine, from pixels to answer.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <thread>

#include "program.h"
#include "statistics.h"

namespace qcn_programs {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

struct Options {
  ModelOptions model;
  int batch = 1, sessions = 1, runs = 10;
  double warm_up_ms = 200, duration_s = 3, fps = 0;
  std::string size;
  bool json = false, infer_only = false;
  int width = 0, height = 0;
};

struct Times {
  std::vector<double> milliseconds;  // of each run
  int dropped = 0;                   // frames that arrived while the previous one was still being classified
  Clock::time_point begun, ended;
};

// Runs one session until the time is over. All sessions start together.
Times measure(const qcn::Model& model, const Options& options, std::atomic<int>& ready) {
  const qcn_model_info& info = model.info();
  qcn::Session session(model);
  const auto batch = static_cast<std::size_t>(options.batch);
  std::mt19937 generator(0);
  const std::size_t bytes = static_cast<std::size_t>(options.width) * static_cast<std::size_t>(options.height) *
                            static_cast<std::size_t>(info.channels);
  std::vector<unsigned char> pixels(bytes * batch);
  for (auto& pixel : pixels) pixel = static_cast<unsigned char>(generator());
  std::vector<qcn_image> images;
  for (std::size_t i = 0; i < batch; ++i) {
    images.push_back(qcn_image_default(&pixels[i * bytes], options.width, options.height, info.channels));
  }
  std::vector<float> input;
  for (const qcn_image& image : images) {
    const std::vector<float> one = model.preprocess(image);
    input.insert(input.end(), one.begin(), one.end());
  }
  std::vector<float> logit(model.classes() * batch), poses(model.pose_size() * batch);
  std::vector<qcn_answer> answers(batch, qcn_answer_default());
  float* const pose = poses.empty() ? nullptr : poses.data();
  const auto once = [&] {
    if (options.infer_only) {
      session.infer(input.data(), options.batch, logit.data(), pose);
    } else {
      session.classify(images.data(), options.batch, answers.data(), logit.data(), pose);
    }
  };

  Times times;
  times.milliseconds.reserve(1 << 16);
  once();
  ready.fetch_sub(1);
  while (ready.load() > 0) std::this_thread::yield();
  for (const auto start = Clock::now(); Milliseconds(Clock::now() - start).count() < options.warm_up_ms;) once();

  times.begun = times.ended = Clock::now();
  auto due = times.begun;
  const auto period =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.fps > 0 ? 1 / options.fps : 0));
  while (Milliseconds(times.ended - times.begun).count() < options.duration_s * 1000 ||
         times.milliseconds.size() < static_cast<std::size_t>(options.runs)) {
    if (options.fps > 0) {
      std::this_thread::sleep_until(due);
      due += period;
    }
    const auto start = Clock::now();
    once();
    times.ended = Clock::now();
    times.milliseconds.push_back(Milliseconds(times.ended - start).count());
    for (; options.fps > 0 && due < times.ended; due += period) ++times.dropped;
  }
  return times;
}

std::vector<Times> measure_all(const qcn::Model& model, const Options& options) {
  const auto count = static_cast<std::size_t>(options.sessions);
  std::vector<Times> times(count);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<int> ready{options.sessions};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        times[i] = measure(model, options, ready);
      } catch (...) {
        errors[i] = std::current_exception();
        ready.fetch_sub(options.sessions);  // the others need not wait for this one
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return times;
}

void report(const qcn::Model& model, const Options& options, double load_ms, const std::vector<Times>& all) {
  std::vector<double> sorted;
  int dropped = 0;
  auto begun = all[0].begun, ended = all[0].ended;
  for (const Times& times : all) {
    sorted.insert(sorted.end(), times.milliseconds.begin(), times.milliseconds.end());
    dropped += times.dropped;
    begun = std::min(begun, times.begun);
    ended = std::max(ended, times.ended);
  }
  std::sort(sorted.begin(), sorted.end());
  const double seconds = std::chrono::duration<double>(ended - begun).count();
  const double rate = static_cast<double>(sorted.size()) * options.batch / seconds;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double memory_mb = static_cast<double>(usage.ru_maxrss) / 1024;
  const struct {
    const char* name;
    double value;
  } figures[] = {{"min", sorted.front()},         {"mean", mean(sorted)},          {"p50", median(sorted)},
                 {"p90", percentile(sorted, 90)}, {"p95", percentile(sorted, 95)}, {"p99", percentile(sorted, 99)},
                 {"max", sorted.back()}};
  if (options.json) {
    std::printf("{%s, \"load_ms\": %s, \"batch\": %d, \"sessions\": %d, \"image\": [%d, %d, %d], \"preprocessing\": %s",
                json_entries(model.info()).c_str(), json_number(load_ms).c_str(), options.batch, options.sessions,
                model.info().channels, options.height, options.width, options.infer_only ? "false" : "true");
    if (options.fps > 0) std::printf(", \"fps\": %s, \"dropped\": %d", json_number(options.fps).c_str(), dropped);
    std::printf(", \"runs\": %zu, \"seconds\": %s, \"images_per_second\": %s, \"memory_mb\": %s, \"latency_ms\": {",
                sorted.size(), json_number(seconds).c_str(), json_number(rate).c_str(), json_number(memory_mb).c_str());
    for (const auto& figure : figures) {
      std::printf("%s\"%s\": %s", &figure == figures ? "" : ", ", figure.name, json_number(figure.value).c_str());
    }
    std::printf("}, \"operations\": [");
    for (int i = 0; i < model.info().operations; ++i) {
      const qcn_operation o = model.operation(i);
      std::printf("%s{\"name\": %s, \"op\": \"%s\", \"asked\": \"%s\", \"ran\": \"%s\", \"kernel\": \"%s\"}",
                  i == 0 ? "" : ", ", quoted(o.name).c_str(), o.op, o.asked, o.ran, o.kernel);
    }
    std::printf("]}\n");
    return;
  }
  std::printf("%s: %s, %s; loaded in %.1f ms\n", readable(model.info().name).c_str(),
              readable(model.info().backend_name).c_str(), model.info().precision, load_ms);
  std::printf("batch %d, %d session%s, images of %d×%d%s, %zu runs in %.2f s, at most %.0f MB of memory\n",
              options.batch, options.sessions, options.sessions == 1 ? "" : "s", options.width, options.height,
              options.infer_only ? " (without pre-processing)" : "", sorted.size(), seconds, memory_mb);
  for (int i = 0; i < model.info().operations; ++i) {
    const qcn_operation o = model.operation(i);
    if (std::strcmp(o.asked, "fp32") == 0) continue;
    std::printf("%s: asked %s, runs %s (%s)\n", readable(o.name).c_str(), o.asked, o.ran, o.kernel);
  }
  std::printf("latency in ms:");
  for (const auto& figure : figures) std::printf("  %s %.3f", figure.name, figure.value);
  std::printf("\nthroughput: %.1f images/s\n", rate);
  if (options.fps > 0) std::printf("at %g frames/s: %d dropped\n", options.fps, dropped);
}

void parse_size(Options& options, const qcn_model_info& info) {
  options.width = info.image_width;
  options.height = info.image_height;
  if (options.size.empty()) return;
  char after = 0;
  if (std::sscanf(options.size.c_str(), "%5dx%5d%c", &options.width, &options.height, &after) != 2 ||
      options.width < 1 || options.height < 1) {
    throw UsageError("--size must look like 640x480, not '" + options.size + "'");
  }
}

int bench(int argc, char** argv) {
  Options options;
  Arguments arguments("qcn-bench BUNDLE [options]",
                      "Measures how long a bundle's network takes, from pixels to answer. Percentiles are computed as\n"
                      "trtexec does; p50 is its median.");
  arguments.number("--batch", "images per run (default: 1)", 1, 1 << 16, options.batch);
  arguments.number("--sessions", "sessions that run at once, one thread per session (default: 1)", 1, 1024,
                   options.sessions);
  arguments.number("--fps", "frames per second for each session (default: as fast as it can)", 0.001, 1e6, options.fps);
  arguments.text("--size", "size of the images before pre-processing, such as 640x480 (default: the data set's)",
                 options.size);
  arguments.flag("--infer", "leave out pre-processing", options.infer_only);
  arguments.number("--duration", "measure for at least this many seconds (default: 3)", 0.0, 86400.0,
                   options.duration_s);
  arguments.number("--runs", "at least this many runs per session (default: 10)", 1, 1 << 30, options.runs);
  arguments.number("--warmup", "run for this many milliseconds before measuring (default: 200)", 0.0, 3.6e6,
                   options.warm_up_ms);
  arguments.flag("--json", "print a JSON object", options.json);
  options.model.add_to(arguments);
  const std::vector<std::string> rest = arguments.parse(argc, argv);
  if (rest.size() != 1) throw UsageError("needs one bundle: see --help");
  const auto start = Clock::now();
  const qcn::Model model = options.model.load(rest[0]);
  const double load_ms = Milliseconds(Clock::now() - start).count();
  parse_size(options, model.info());
  report(model, options, load_ms, measure_all(model, options));
  return kDone;
}

}  // namespace
}  // namespace qcn_programs

int main(int argc, char** argv) { return qcn_programs::guarded_main("qcn-bench", qcn_programs::bench, argc, argv); }
