// qcn-run: classifies pictures in files with a bundle's network.
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "image.h"
#include "program.h"

namespace qcn_programs {
namespace {

constexpr int kViews = 2;  // of a network that takes stereo pairs

struct Options {
  ModelOptions model;
  int top = 1;
  bool json = false, pose = false, beside = false;
};

struct Result {
  std::vector<std::string> files;
  std::string error;  // empty if all went well
  qcn::Answer answer;
};

// Replaces folders by the pictures in them, sorted by name.
std::vector<std::string> with_folders(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    const std::vector<std::string> found = pictures_in(path);
    if (found.empty()) throw UsageError("there are no pictures in the folder " + path);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

// Reads the next picture for a network of `channels` channels, from files[at] on. Moves `at` past its files and adds
// them to `taken`, even when one of them cannot be read.
//
// Each file is a picture, of which libqcn makes what the network takes. But a network of 2 channels takes two views of
// an object, left and right: from one file with 2 channels, from one file with the views side by side, or from two
// files.
Picture next_picture(const std::vector<std::string>& files, std::size_t& at, int channels, bool beside,
                     std::vector<std::string>& taken) {
  const auto read = [&] {
    taken.push_back(files[at++]);
    return read_picture(taken.back());
  };
  if (channels != kViews) {
    Picture picture = read();
    return picture.channels == 2 ? grey(std::move(picture)) : picture;  // grey and transparency, not two views
  }
  if (beside) return split_beside(read(), kViews);
  std::vector<Picture> views;
  std::string failed;
  for (int view = 0; view < kViews; ++view) {
    if (at == files.size()) {
      throw std::runtime_error(
          "the network takes two views of an object, and this is one: give two files (left, right), a file of two "
          "channels, or a file with both views side by side and --beside");
    }
    try {
      Picture picture = read();
      if (view == 0 && picture.channels == kViews) return picture;
      views.push_back(grey(std::move(picture)));
    } catch (const std::runtime_error& error) {
      if (failed.empty()) failed = taken.back() + ": " + error.what();
    }
  }
  if (!failed.empty()) throw std::runtime_error(failed);
  return stacked(views);
}

std::string joined(const std::vector<std::string>& files) {
  std::string text;
  for (const auto& file : files) text += (text.empty() ? "" : " + ") + file;
  return text;
}

void print_text(const qcn::Model& model, const Options& options, const Result& result) {
  const std::string name = readable(joined(result.files));
  if (!result.error.empty()) {
    std::fprintf(stderr, "qcn-run: %s: %s\n", name.c_str(), readable(result.error).c_str());
    return;
  }
  const qcn::Answer& answer = result.answer;
  const std::vector<double> probability = model.probabilities(answer.logit);
  std::string line = name + ":";
  int left = options.top;
  for (const int index : answer.order()) {
    const auto at = static_cast<std::size_t>(index);
    const bool first = index == answer.index;
    line += (first ? " " : ", ") + words(model.class_name(index), probability[at], answer.known || !first);
    if (first && answer.direction) {
      line += seen_from(answer.direction->azimuth, answer.direction->elevation, answer.direction->spread);
    }
    if (options.pose) {
      const float* pose = &answer.pose[at * 3];
      char numbers[128];
      std::snprintf(numbers, sizeof numbers, " (%.4f, %.4f, %.4f)", static_cast<double>(pose[0]),
                    static_cast<double>(pose[1]), static_cast<double>(pose[2]));
      line += numbers;
    }
    if (--left == 0) break;
  }
  std::printf("%s\n", line.c_str());
}

// An object by class: {"cat": …, "dog": …}. `number` writes the entry of a class.
template <typename Number>
std::string by_class(const qcn::Model& model, const Number& number) {
  std::string text;
  for (std::size_t i = 0; i < model.classes(); ++i) {
    text += (i ? ", " : "") + quoted(model.class_name(static_cast<int>(i))) + ": " + number(i);
  }
  return "{" + text + "}";
}

std::string json_direction(const qcn::Direction& direction) {
  const auto number = [](double value) { return json_number(value, 17); };
  const bool up = !std::isnan(direction.elevation);
  const double radians = std::acos(-1.0) / 180, around = radians * direction.azimuth;
  const double elevation = up ? radians * direction.elevation : 0, level = std::cos(elevation);
  return "{\"azimuth\": " + number(direction.azimuth) +
         ", \"elevation\": " + (up ? number(direction.elevation) : "null") + ", \"vector\": [" +
         number(level * std::cos(around)) + ", " + number(level * std::sin(around)) + ", " +
         number(std::sin(elevation)) + "], \"spread\": " + number(direction.spread) + "}";
}

// One line per picture, as `qcn predict --jsonl` writes it.
void print_json(const qcn::Model& model, const Result& result) {
  const std::string file = "{\"file\": " + quoted(joined(result.files));
  if (!result.error.empty()) {
    std::printf("%s, \"error\": %s}\n", file.c_str(), quoted(result.error).c_str());
    return;
  }
  const qcn::Answer& answer = result.answer;
  const auto number = [](float value) { return json_number(static_cast<double>(value)); };
  const std::string logit = by_class(model, [&](std::size_t i) { return number(answer.logit[i]); });
  std::string pose = "null";
  if (!answer.pose.empty()) {
    pose = by_class(model, [&](std::size_t i) {
      const float* of = &answer.pose[3 * i];
      return "[" + number(of[0]) + ", " + number(of[1]) + ", " + number(of[2]) + "]";
    });
  }
  const std::string direction = answer.direction ? json_direction(*answer.direction) : "null";
  std::printf(
      "%s, \"label\": %s, \"probability\": %s, \"known\": %s, \"direction\": %s, \"logit\": %s, \"pose\": %s}\n",
      file.c_str(), quoted(answer.label).c_str(), json_number(answer.probability, 17).c_str(),
      answer.known ? "true" : "false", direction.c_str(), logit.c_str(), pose.c_str());
}

Result classify_next(qcn::Session& session, const std::vector<std::string>& files, std::size_t& at, bool beside) {
  Result result;
  try {
    const Picture picture = next_picture(files, at, session.model().info().channels, beside, result.files);
    result.answer =
        session.classify(qcn_image_default(picture.pixels.data(), picture.width, picture.height, picture.channels));
  } catch (const std::runtime_error& error) {  // the file cannot be read, or the library refuses the picture
    result.error = error.what();
  }
  return result;
}

int run(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "qcn-run BUNDLE PICTURE… [options]",
      "Prints what is on pictures of any size and how likely that is right, or \"unknown\" for what is like nothing "
      "that the\n"
      "network was trained on. Pictures are PGM, PPM, PAM, PNG or JPEG files, or folders of them. A network of two "
      "views takes\n"
      "files in pairs: left, right, left, right; or files with both views side by side (--beside). "
      "The exit code is 0, or 1\n"
      "if a file could not be classified, 2 for wrong usage, 3 if this machine lacks something.");
  arguments.number("--top", "number of classes to print (default: 1)", 1, 1 << 20, options.top);
  arguments.flag("--pose", "print the pose of each class: three numbers (JSON has it anyway)", options.pose);
  arguments.flag("--beside", "each file shows both views of an object, side by side", options.beside);
  arguments.flag("--json", "print one JSON object per picture and line", options.json);
  options.model.add_to(arguments);
  options.model.add_field_to(arguments);
  const std::vector<std::string> rest = arguments.parse(argc, argv);
  if (rest.size() < 2) throw UsageError("needs a bundle and at least one picture: see --help");
  const std::vector<std::string> files = with_folders({rest.begin() + 1, rest.end()});
  const qcn::Model model = options.model.load(rest[0]);
  if (options.pose && !model.info().poses) {
    throw UsageError("--pose: " + rest[0] + " is a network without poses; leave out --pose");
  }
  if (options.beside && model.info().channels != kViews) {
    throw UsageError("--beside: " + rest[0] + " takes one view of an object; leave out --beside");
  }
  qcn::Session session(model);
  bool failed = false;
  for (std::size_t at = 0; at < files.size();) {
    const Result result = classify_next(session, files, at, options.beside);
    failed |= !result.error.empty();
    options.json ? print_json(model, result) : print_text(model, options, result);
  }
  return failed ? kFailed : kDone;
}

}  // namespace
}  // namespace qcn_programs

int main(int argc, char** argv) { return qcn_programs::guarded_main("qcn-run", qcn_programs::run, argc, argv); }
