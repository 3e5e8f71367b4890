// What a model records in the field: test_field FOLDER, in which folders are made.
// The library's own headers come first: its classes share names with those of qcn.hpp.
#include "check.h"
#include "json.h"
#include "tiny_bundle.h"

#include <qcn/qcn.hpp>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;
using std::string;

string fresh(const string& folder) {
  fs::remove_all(folder);
  return folder;
}

std::vector<string> files(const string& folder, const string& beginning) {
  std::vector<string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const string name = entry.path().filename().string();
    if (name.rfind(beginning, 0) == 0) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The sum of a count over all periods of all files.
std::int64_t total(const string& folder, const char* what) {
  std::int64_t sum = 0;
  for (const string& name : files(folder, "counts-")) {
    const qcn::Json json = qcn::Json::parse(tiny::read(folder + "/" + name));
    check(json.at("name", "it").text("name") == "tiny", "the network's name");
    for (const qcn::Json& period : json.at("periods", "it").list("periods")) {
      sum += period.at(what, "a period").integer(what, 0);
      std::int64_t bins = 0;
      for (const qcn::Json& bin : period.at("confidence", "a period").list("confidence")) bins += bin.integer("bin", 0);
      check(bins == period.at("answers", "a period").integer("answers", 0), "every answer is in a bin of confidence");
    }
  }
  return sum;
}

qcn::Model load(const string& bundle, qcn_field_params& field) {
  qcn_model_params params = qcn_model_default_params();
  params.backend = QCN_BACKEND_NATIVE;
  params.field = &field;
  return qcn::Model(bundle, params);
}

const std::vector<unsigned char> pixels(64, 90);

qcn_image picture() { return qcn_image_default(pixels.data(), 8, 8, 1); }

void test_counts_of_many_threads(const string& bundle, const string& folder) {
  qcn_field_params field = qcn_field_default_params(folder.c_str());
  field.below = 1;  // all are uncertain
  field.pictures = 3;
  field.gap = 0;
  field.period = 1;
  {
    const qcn::Model model = load(bundle, field);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&model] {
        qcn::Session session(model);
        qcn_answer answers[2] = {qcn_answer_default(), qcn_answer_default()};
        const qcn_image images[2] = {picture(), picture()};
        for (int i = 0; i < 250; ++i) session.classify(images, 2, answers);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<float> logit(tiny::kClasses);
    qcn::Session(model).classify(std::vector<qcn_image>{picture()}.data(), 1, nullptr, logit.data());
  }
  check(total(folder, "answers") == 2000, "every answer is counted, and logits alone are no answer");
  check(total(folder, "uncertain") == 2000, "all are uncertain");
  const std::size_t kept = files(folder, "uncertain-").size();
  check(kept >= 1 && kept <= 3, "the last three pictures at most: " + std::to_string(kept));
  check(files(folder, ".").empty(), "nothing unfinished is left");
  struct stat status;
  for (const string& name : files(folder, "")) {
    check(stat((folder + "/" + name).c_str(), &status) == 0 && (status.st_mode & 077) == 0, name + " is private");
  }
}

void test_a_picture_is_kept_as_it_was(const string& bundle, const string& folder) {
  qcn_field_params field = qcn_field_default_params(folder.c_str());
  field.below = 1;
  field.pictures = 10;
  field.gap = 0;
  std::vector<unsigned char> colours(12 * 5 * 4, 255);
  colours[0] = 10, colours[1] = 20, colours[2] = 30;        // in BGRA: blue, green, red
  colours[4] = colours[5] = colours[6] = colours[7] = 0;    // transparent: white
  qcn_image bgra = qcn_image_default(colours.data(), 12, 5, 4);
  bgra.reverse_channels = 1;
  {
    const qcn::Model model = load(bundle, field);
    qcn::Session session(model);
    session.classify(bgra);
    const std::vector<float> numbers(12 * 10, 0.5f);
    qcn_image floats = qcn_image_default(numbers.data(), 12, 10, 1);
    floats.pixel = QCN_FLOAT32;
    floats.column_stride = 4, floats.row_stride = 48;
    session.classify(floats);
  }
  const std::vector<string> kept = files(folder, "uncertain-");
  check(kept.size() == 1 && contains(kept[0], ".ppm"), "one picture of bytes");
  if (kept.size() == 1) {
    const string text = tiny::read(folder + "/" + kept[0]);
    check(text.rfind("P6\n12 5\n255\n", 0) == 0 && text.size() == 12 + 12 * 5 * 3, "a PPM file");
    check(text.substr(12, 6) == string{30, 20, 10, '\xff', '\xff', '\xff'}, "in colours, laid on white");
  }
  const string packed = fresh(folder + "-packed");
  field.folder = packed.c_str();
  std::vector<unsigned char> grey(64);
  for (std::size_t i = 0; i < grey.size(); ++i) grey[i] = static_cast<unsigned char>(i);
  {
    const qcn::Model model = load(bundle, field);
    qcn_image upside_down = qcn_image_default(grey.data() + 56, 8, 8, 1);
    upside_down.row_stride = -8;
    qcn::Session(model).classify(upside_down);
  }
  const std::vector<string> grey_kept = files(packed, "uncertain-");
  check(grey_kept.size() == 1 && contains(grey_kept[0], ".pgm"), "a grey picture");
  if (grey_kept.size() == 1) {
    const string text = tiny::read(packed + "/" + grey_kept[0]);
    check(text.rfind("P5\n8 8\n255\n", 0) == 0 && text.size() == 11 + 64, "a PGM file");
    check(text[11] == 56 && text[11 + 8] == 48 && text.back() == 7, "row by row");
  }
  check(total(folder, "lost") == 1, "floats are counted as lost");
}

void test_the_folder_keeps_its_limit(const string& bundle, const string& folder) {
  qcn_field_params field = qcn_field_default_params(folder.c_str());
  field.below = 1;
  field.pictures = 100;
  field.gap = 0;
  field.mib = 1;
  fs::create_directory(folder);
  tiny::write(folder + "/uncertain-20200101T000000000-1-0-0-500-known.ppm", string(700000, 'x'));
  tiny::write(folder + "/uncertain-20200101T000000001-1-0-0-500-known.ppm", string(700000, 'x'));
  tiny::write(folder + "/notes.txt", string(2000000, 'x'));
  {
    const qcn::Model model = load(bundle, field);
    qcn::Session(model).classify(picture());
  }
  check(files(folder, "uncertain-").size() == 2, "the oldest picture is gone");
  check(fs::exists(folder + "/notes.txt"), "what is not ours stays");
}

volatile std::sig_atomic_t heard = 0;

// Or a program that waits for a camera would not be interrupted.
void test_signals_are_for_the_program(const string& bundle, const string& folder) {
  qcn_field_params field = qcn_field_default_params(folder.c_str());
  const qcn::Model model = load(bundle, field);
  std::signal(SIGUSR1, [](int) { heard = 1; });
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &one, &before);
  kill(getpid(), SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  check(!heard, "the thread that writes takes no signal");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  check(heard, "the program's thread does");
}

void test_what_is_refused(const string& bundle) {
  const auto refuse = [&](qcn_field_params field, const char* what, qcn_status status) {
    qcn_model_params params = qcn_model_default_params();
    params.field = &field;
    qcn_model* model = nullptr;
    check(qcn_model_load(bundle.c_str(), &params, &model) == status, what);
    check(contains(qcn_last_error(), what), string(what) + " is not in: " + qcn_last_error());
  };
  qcn_field_params field = qcn_field_default_params("/no/such/folder");
  refuse(field, "/no/such/folder", QCN_NO_FILE);
  refuse(qcn_field_default_params(""), "folder", QCN_BAD_ARGUMENT);
  field.below = 1.5;
  refuse(field, "below", QCN_BAD_ARGUMENT);
  field = qcn_field_default_params("/tmp");
  field.period = 0;
  refuse(field, "period", QCN_BAD_ARGUMENT);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const string folder = arguments[1], bundle = fresh(folder + "/field-bundle");
  tiny::write_bundle(bundle);
  test_counts_of_many_threads(bundle, fresh(folder + "/field-threads"));
  test_a_picture_is_kept_as_it_was(bundle, fresh(folder + "/field-picture"));
  test_the_folder_keeps_its_limit(bundle, fresh(folder + "/field-limit"));
  test_signals_are_for_the_program(bundle, fresh(folder + "/field-signal"));
  test_what_is_refused(bundle);
  return verdict();
}
