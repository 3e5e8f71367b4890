// qcn-run: what a bundle's network says of pictures in files.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "image.h"
#include "model.h"

namespace qcn_programs {
namespace {

struct Options {
  ModelOptions model;
  int top = 1;
  bool json = false, pose = false, beside = false;
};

struct Answer {
  std::vector<std::string> files;
  std::string error;  // empty if there is none
  std::vector<float> activation, pose;
  double milliseconds = 0;
};

// Folders become the pictures in them, by name.
std::vector<std::string> with_folders(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code none;
    if (!std::filesystem::is_directory(path, none)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (is_picture_name(entry.path().string())) found.push_back(entry.path().string());
    }
    if (found.empty()) throw UsageError("there are no pictures in the folder " + path);
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

// The picture that starts with this file, for a network of `channels` channels. Takes the files that it consists of
// from `files`, even when one of them cannot be read.
//
// A network of 1 or 3 channels sees a picture a file. One of 2 sees two views of a thing, left and right: a file that
// has 2 channels itself, or one with the views beside each other, or else two files.
Picture next_picture(const std::vector<std::string>& files, std::size_t& at, int channels, bool beside,
                     std::vector<std::string>& taken) {
  const auto read = [&] {
    taken.push_back(files[at++]);
    return read_picture(taken.back());
  };
  if (channels == 1 || channels == 3) return with_channels(read(), channels);
  if (beside) return split_beside(read(), channels);
  std::vector<Picture> views;
  std::string failed;
  for (int view = 0; view < channels; ++view) {
    if (at == files.size()) {
      throw std::runtime_error("the network takes " + std::to_string(channels) +
                               " views of a thing, a file each; or one file with --beside");
    }
    try {
      Picture picture = read();
      if (view == 0 && picture.channels == channels) return picture;
      views.push_back(with_channels(std::move(picture), 1));
    } catch (const std::runtime_error& error) {
      if (failed.empty()) failed = taken.back() + ": " + error.what();
    }
  }
  if (!failed.empty()) throw std::runtime_error(failed);
  return stacked(views);
}

std::vector<int> best_first(const std::vector<float>& activation) {
  std::vector<int> order(activation.size());
  std::iota(order.begin(), order.end(), 0);
  // NaN is no order that sort may be given: it counts as less than all.
  const auto rank = [&](int i) {
    const float value = activation[static_cast<std::size_t>(i)];
    return value == value ? value : -1.0F;
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) > rank(b); });
  return order;
}

std::string joined(const std::vector<std::string>& files, const char* between) {
  std::string text;
  for (const auto& file : files) text += (text.empty() ? "" : between) + file;
  return text;
}

void print_text(const Model& model, const Options& options, const Answer& answer) {
  const std::string name = joined(answer.files, " + ");
  if (!answer.error.empty()) {
    std::fprintf(stderr, "qcn-run: %s: %s\n", name.c_str(), answer.error.c_str());
    return;
  }
  std::printf("%s:", name.c_str());
  const auto order = best_first(answer.activation);
  for (std::size_t i = 0; i < order.size() && i < static_cast<std::size_t>(options.top); ++i) {
    const auto index = static_cast<std::size_t>(order[i]);
    std::printf("%s %s %.4f", i ? "," : "", model.class_name(order[i]).c_str(), answer.activation[index]);
    if (options.pose) {
      const float* pose = &answer.pose[index * 3];
      std::printf(" (%.4f, %.4f, %.4f)", pose[0], pose[1], pose[2]);
    }
  }
  std::printf("\n");
}

void print_json(const Model& model, const Options& options, const Answer& answer, bool first) {
  std::printf("%s\n  {\"files\": [", first ? "" : ",");
  for (std::size_t i = 0; i < answer.files.size(); ++i) {
    std::printf("%s%s", i ? ", " : "", quoted(answer.files[i]).c_str());
  }
  std::printf("], ");
  if (!answer.error.empty()) {
    std::printf("\"error\": %s}", quoted(answer.error).c_str());
    return;
  }
  const int best = qcn_best(answer.activation.data(), static_cast<int>(answer.activation.size()));
  std::printf("\"class\": %s, \"milliseconds\": %s, \"answers\": [",
              best < 0 ? "null" : quoted(model.class_name(best)).c_str(), json_number(answer.milliseconds).c_str());
  const auto order = best_first(answer.activation);
  for (std::size_t i = 0; i < order.size() && i < static_cast<std::size_t>(options.top); ++i) {
    const auto index = static_cast<std::size_t>(order[i]);
    std::printf("%s{\"class\": %s, \"activation\": %s", i ? ", " : "", quoted(model.class_name(order[i])).c_str(),
                json_number(answer.activation[index]).c_str());
    if (options.pose) {
      const float* pose = &answer.pose[index * 3];
      std::printf(", \"pose\": [%s, %s, %s]", json_number(pose[0]).c_str(), json_number(pose[1]).c_str(),
                  json_number(pose[2]).c_str());
    }
    std::printf("}");
  }
  std::printf("]}");
}

Answer answer_next(const Model& model, const Session& session, const std::vector<std::string>& files, std::size_t& at,
                   bool beside) {
  Answer answer;
  try {
    const Picture picture = next_picture(files, at, model.info().channels, beside, answer.files);
    const qcn_image image = qcn_image_default(picture.pixels.data(), picture.width, picture.height, picture.channels);
    answer.activation.resize(static_cast<std::size_t>(model.info().classes));
    answer.pose.resize(answer.activation.size() * 3);
    const auto start = std::chrono::steady_clock::now();
    succeed(qcn_classify(session.get(), &image, 1, answer.activation.data(), answer.pose.data()));
    answer.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  } catch (const std::runtime_error& error) {  // of the file, or of the library for this picture
    answer.error = error.what();
  }
  return answer;
}

int run(int argc, char** argv) {
  Options options;
  Arguments arguments("qcn-run BUNDLE PICTURE… [options]",
                      "Classifies pictures: PGM, PPM, PAM, PNG or JPEG files, or folders of them. A network of two "
                      "views takes files in\n"
                      "pairs: left, right, left, right; or files with both views beside each other (--beside). Ends "
                      "with 0, with 1 if a\n"
                      "file could not be classified, 2 for wrong usage, 3 if this machine lacks something.");
  arguments.number("--top", "how many classes to print; 1", 1, 1 << 20, options.top);
  arguments.flag("--pose", "print the pose of each class, three numbers", options.pose);
  arguments.flag("--beside", "every file shows all views of a thing, beside each other", options.beside);
  arguments.flag("--json", "print a JSON object", options.json);
  options.model.add_to(arguments);
  const std::vector<std::string> rest = arguments.parse(argc, argv);
  if (rest.size() < 2) throw UsageError("needs a bundle and at least one picture: see --help");
  const std::vector<std::string> files = with_folders({rest.begin() + 1, rest.end()});
  const Model model(rest[0], options.model);
  const Session session(model.get());
  if (options.json) std::printf("{%s, \"pictures\": [", model.json().c_str());
  bool failed = false;
  for (std::size_t at = 0; at < files.size();) {
    const bool first = at == 0;
    const Answer answer = answer_next(model, session, files, at, options.beside);
    failed |= !answer.error.empty();
    options.json ? print_json(model, options, answer, first) : print_text(model, options, answer);
  }
  if (options.json) std::printf("\n]}\n");
  return failed ? kFailed : kDone;
}

}  // namespace
}  // namespace qcn_programs

int main(int argc, char** argv) { return qcn_programs::guarded_main("qcn-run", qcn_programs::run, argc, argv); }
