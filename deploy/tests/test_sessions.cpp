// qcn.hpp, and many threads: test_sessions BUNDLE [INFERENCES per thread], of any bundle.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <qcn/qcn.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

static std::atomic<int> failures{0};

static void check(bool good, const char* what) {
  if (good) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

template <typename Body>
static void on_threads(int count, const Body& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

static std::vector<unsigned char> drawn(int width, int height, int channels) {
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                                    static_cast<std::size_t>(channels));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<unsigned char>(i * 91);
  return pixels;
}

// Of this process, what is in memory.
static long resident_kib() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return 0;
  const int found = std::fscanf(file, "%*d %ld", &pages);
  std::fclose(file);
  return found == 1 ? pages * (sysconf(_SC_PAGESIZE) / 1024) : 0;
}

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const int inferences = count > 2 ? std::atoi(arguments[2]) : 10000;

  try {
    qcn::Model("/no/such/folder");
    check(false, "a folder that is not there is refused");
  } catch (const qcn::Error& error) {
    check(error.status() == QCN_NO_FILE && std::strstr(error.what(), "/no/such/folder"), error.what());
  }

  auto model = std::make_unique<qcn::Model>(arguments[1]);
  const qcn_model_info info = model->info();
  const auto classes = static_cast<std::size_t>(info.classes);
  const std::vector<unsigned char> pixels = drawn(info.image_width, info.image_height, info.channels);
  const qcn_image image = qcn_image_default(pixels.data(), info.image_width, info.image_height, info.channels);
  qcn::Session first(*model);
  const qcn::Answer expected = first.classify(image);
  check(model->class_name(expected.index) == expected.label && expected.probability > 0 && expected.known &&
            expected.logit.size() == classes,
        "an answer has a name");
  const std::vector<qcn::Answer> two = first.classify(std::vector<qcn_image>{image, image});
  check(two.size() == 2 && two[1].label == expected.label && two[1].order() == expected.order() &&
            first.classify(std::vector<qcn_image>()).empty(),
        "two");
  qcn::Session moved = std::move(first);
  check(moved.classify(image).logit == expected.logit, "a session moves");

  // What the program's own functions do when they are called: neither an exception nor the same session again harms it.
  struct Misuse {
    qcn_session* session;
    const qcn_image* image;
    std::vector<float> logit;
    qcn_status again;
  } misuse{nullptr, &image, std::vector<float>(classes), QCN_OK};
  qcn_session_params params = qcn_session_default_params();
  params.layer = [](const qcn_layer*, void* user) {
    auto& given = *static_cast<Misuse*>(user);
    given.again = qcn_classify(given.session, given.image, 1, nullptr, given.logit.data(), nullptr);
    throw std::runtime_error("thrown by the program");
  };
  params.layer_user = &misuse;
  qcn_model_params native = qcn_model_default_params();
  native.backend = QCN_BACKEND_NATIVE;  // which alone shows its layers
  qcn_model* other = nullptr;
  check(!qcn_model_load(arguments[1], &native, &other) && !qcn_session_create(other, &params, &misuse.session), "C");
  qcn_model_free(other);
  for (int i = 0; i < 2 && info.poses; ++i) {
    check(qcn_classify(misuse.session, &image, 1, nullptr, misuse.logit.data(), nullptr) == QCN_INTERNAL_ERROR &&
              std::strstr(qcn_last_error(), "thrown by the program") && misuse.again == QCN_BAD_ARGUMENT,
          qcn_last_error());
  }
  qcn_session_free(misuse.session);
  qcn_model_params loud = qcn_model_default_params();
  loud.log = [](qcn_log_level, const char*, void*) { throw std::runtime_error("thrown by the program"); };
  check(qcn_model_load("/no/such/folder", &loud, &other) == QCN_NO_FILE &&
            std::strstr(qcn_last_error(), "/no/such/folder"),
        "a log function that throws does not hide why loading failed");
  check(qcn_model_load(arguments[1], &loud, &other) == QCN_INTERNAL_ERROR &&
            std::strstr(qcn_last_error(), "thrown by the program"),
        qcn_last_error());

  // Sessions of one model, which is freed while they work; every answer has the same bits. No session allocates after
  // its first answer, so the process stays as large as it was then.
  std::vector<qcn::Session> sessions;
  for (int i = 0; i < 8; ++i) sessions.emplace_back(*model);
  model.reset();
  std::atomic<int> waiting{8};
  std::atomic<long> before{0}, wrong{0};
  const auto start = std::chrono::steady_clock::now();
  on_threads(8, [&](int thread) {
    qcn_answer answer = qcn_answer_default();
    std::vector<float> logit(classes), pose(3 * classes);
    for (int i = 0; i < inferences; ++i) {
      qcn_session* const session = sessions[static_cast<std::size_t>(thread)].get();
      const qcn_status status = qcn_classify(session, &image, 1, &answer, logit.data(), pose.data());
      wrong += status != QCN_OK || logit != expected.logit || pose != expected.pose || answer.label != expected.label ||
               answer.probability != expected.probability;
      if (i == 0 && --waiting == 0) before = resident_kib();
    }
  });
  const long grown = resident_kib() - before;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  check(wrong == 0, "every thread gets the answer, every time");
#ifdef __SANITIZE_THREAD__
  constexpr long kAllowed = 8 << 10;  // its shadow of our memory comes page by page
#else
  constexpr long kAllowed = 1 << 10;
#endif
  check(grown < kAllowed, "memory does not grow");
  std::printf("8 threads x %d inferences in %.1f s: %ld wrong, memory grew by %ld KiB\n", inferences, elapsed.count(),
              wrong.load(), grown);

  // Models loaded, used and freed by eight threads at once; each has its own last error.
  on_threads(8, [&](int thread) {
    const std::string nowhere = "/no/such/folder/" + std::to_string(thread);
    for (int i = 0; i < 5; ++i) {
      const qcn::Model own(arguments[1]);
      qcn::Session session(own);
      qcn_model* none = nullptr;
      check(qcn_model_load(nowhere.c_str(), nullptr, &none) == QCN_NO_FILE, "no such folder");
      check(session.classify(image).logit == expected.logit, "a model of this thread's own");
      check(std::strstr(qcn_last_error(), nowhere.c_str()), "the last error is this thread's");
    }
  });

  // One session used by several threads at once, which is wrong: a call that meets another is refused, and one that
  // does not is answered rightly. Each thread tries until it was answered, so that the session passes from one to
  // another.
  std::atomic<int> refusals{0}, passed_on{0}, last{-1};
  on_threads(8, [&](int thread) {
    for (int answered = 0; answered < 20;) {
      std::vector<float> logit(classes);
      const qcn_status status = qcn_classify(sessions[0].get(), &image, 1, nullptr, logit.data(), nullptr);
      if (status == QCN_OK) {
        ++answered;
        passed_on += last.exchange(thread) != thread;
        check(logit == expected.logit, "a shared session's answer");
      } else {
        ++refusals;
        check(status == QCN_BAD_ARGUMENT && std::strstr(qcn_last_error(), "another thread"), qcn_last_error());
      }
      // Else the others' refusals would fill the processors while the one call that they meet waits for its turn.
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  check(passed_on >= 8, "the session passed from thread to thread");
  std::printf("a shared session: 160 answers, %d refusals, passed on %d times\n", refusals.load(), passed_on.load());
  return failures ? 1 : 0;
}
