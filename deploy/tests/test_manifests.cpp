// The manifests that Python's reader and this one must judge alike: test_manifests FOLDER, which has good/ and bad/. Those
// in other-formats/ are wrong about files that libqcn never opens: Python refuses them, by its registry of backends, and
// libqcn takes them. Prints one verdict per file.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "check.h"
#include "manifest.h"
#include "tiny_bundle.h"

namespace {

std::vector<std::filesystem::path> files(const std::string& folder) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  auto good = files(folder + "/good"), others = files(folder + "/other-formats");
  const auto bad = files(folder + "/bad");
  check(good.size() >= 4 && bad.size() >= 25 && others.size() >= 10, folder + " has the manifests");
  good.insert(good.end(), others.begin(), others.end());
  for (const auto& path : good) {
    const std::string name = path.parent_path().filename().string() + "/" + path.filename().string();
    const bool taken = accepted_or_refused(name, [&] { qcn::parse_manifest(tiny::read(path.string())); });
    check(taken, name + " is refused");
    std::printf("%s: taken\n", name.c_str());
  }
  for (const auto& path : bad) {
    const std::string name = "bad/" + path.filename().string();
    const std::string why = refused(name, QCN_BAD_BUNDLE, [&] { qcn::parse_manifest(tiny::read(path.string())); });
    std::printf("%s: %s\n", name.c_str(), why.c_str());
  }
  return verdict();
}
