// Bundles that are not what they should be: cut short, altered byte by byte, made to lead elsewhere or to exhaust.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "bundle.h"
#include "check.h"
#include "golden.h"
#include "manifest.h"
#include "model.h"
#include "program.h"
#include "public_key.h"
#include "sha256.h"
#include "tensors.h"
#include "tiny_bundle.h"

using std::string;
using std::to_string;

namespace {

const networks::Network kNetwork = tiny::network();
const string kWeights = kNetwork.weights(), kGolden = tiny::golden(kNetwork),
             kManifest = tiny::manifest(kWeights, kGolden);
const qcn::Signature kSignature = {tiny::kChannels, tiny::kSide, tiny::kSide, tiny::kClasses, true};

string replaced(string text, const string& from, const string& to) {
  const std::size_t place = text.find(from);
  check(place != string::npos, "the test replaces what is not there: " + from);
  return place == string::npos ? text : text.replace(place, from.size(), to);
}

// The manifest with these as tolerances of the weights.
string with_tolerance(double logit, double pose) {
  const string before = "\"tolerance\": {";
  const std::size_t begin = kManifest.find(before) + before.size();
  char numbers[80];
  std::snprintf(numbers, sizeof numbers, "\"logit\": %.17g, \"pose\": %.17g", logit, pose);
  return replaced(kManifest, kManifest.substr(begin, kManifest.find('}', begin) - begin), numbers);
}

qcn::Manifest read_manifest_in(const string& folder, const std::optional<qcn::PublicKey>& key = std::nullopt) {
  return qcn::read_manifest(*qcn::files_in_folder(folder), key);
}

// Every beginning of the text, and every byte changed in each bit and to characters that mean something to a reader; of
// a long text some of these for each byte, others for the next.
void every_change(const string& name, const string& text, std::size_t until,
                  const std::function<void(const string&)>& read) {
  const std::size_t step = 1 + until / 500;
  for (std::size_t length = 0; length < text.size(); length += length < until ? step : 1) {
    if (length > until && length + 64 < text.size()) continue;
    const string what = name + " cut to " + to_string(length);
    // A copy of its own size, so that the address sanitizer sees the first byte beyond it.
    check(!accepted_or_refused(what, [&] { read(string(text, 0, length)); }) || length + 1 == text.size(), what);
  }
  for (std::size_t place = 0; place < until; ++place) {
    std::vector<char> values = {'\0', '\xFF', '"', '{', '}', '[', ',', '0', '9', '-'};
    for (int bit = 0; bit < 8; ++bit) values.push_back(static_cast<char>(text[place] ^ 1 << bit));
    for (std::size_t i = place % step; i < values.size(); i += step) {
      string changed = text;
      changed[place] = values[i];
      accepted_or_refused(name + ", byte " + to_string(place) + " set to " + to_string(values[i]),
                          [&] { read(changed); });
    }
  }
}

// What a session would do with files that were accepted: an altered one must not lead it out of bounds.
void use_weights(const string& file) {
  const auto tensors = std::make_shared<const qcn::TensorFile>(networks::bytes(file), qcn::kWeightsSchema);
  qcn::program::Program program(tensors);
  const qcn::Signature signature = program.signature;
  if (signature.image_floats() > 1000) return;
  const auto backend = qcn::native_backend(std::move(program));
  std::vector<float> input(signature.image_floats());
  std::vector<float> logit(signature.logit_floats()), pose(signature.pose_floats());
  backend->runner(nullptr)->run(input.data(), 1, logit.data(), signature.poses ? pose.data() : nullptr);
}

void altered_files() {
  every_change("manifest.json", kManifest, kManifest.size(), [](const string& text) { qcn::parse_manifest(text); });
  for (const bool poses : {true, false}) {
    const string weights = tiny::network(poses).weights();
    // All of the header, which ends where the arrays begin.
    std::size_t header = 8;
    for (std::size_t i = 0; i < 8; ++i)
      header += static_cast<std::size_t>(static_cast<unsigned char>(weights[i])) << 8 * i;
    every_change("weights.safetensors", weights, header, use_weights);
  }
  every_change("golden.safetensors", kGolden, 1300, [&](const string& text) {
    const qcn::TensorFile file(networks::bytes(text), qcn::kGoldenSchema);
    qcn::read_golden(file, qcn::parse_manifest(kManifest));
  });
}

// What is refused is in tests/manifests, which test_manifests.cpp reads; here is what becomes of a good one.
void manifests() {
  const qcn::Manifest manifest = qcn::parse_manifest(kManifest);
  check(manifest.name == "tiny" && manifest.classes[2] == "é" && manifest.files.size() == 2, "a manifest is read");
  check(manifest.preprocessing.crop == 8 && !manifest.preprocessing.resize && manifest.preprocessing.std[0] == 0.25,
        "pre-processing is read");
  check(manifest.signature == kSignature, "the input and the outputs are read");
  const qcn::Tolerance tolerance = qcn::parse_manifest(with_tolerance(1e-5, 2e-5)).files[1].tolerance;
  check(tolerance.logit == 1e-5 && tolerance.pose == 2e-5, "tolerances are read");
  check(manifest.files[1].rebuild_in("a/b") == "qcn export RUN --format native --out a/b", "rebuilding");
  check(manifest.files[1].rebuild_in("'{bundle} of me'") == "qcn export RUN --format native --out '{bundle} of me'",
        manifest.files[1].rebuild_in("'{bundle} of me'"));
  check(!qcn::parse_manifest(tiny::manifest(kWeights, kGolden, false)).signature.poses, "a network without poses");
  refused("a newer schema", QCN_BAD_BUNDLE,
          [] { qcn::parse_manifest(replaced(kManifest, "\"schema\": 4", "\"schema\": 5")); },
          {"it has schema 5, of ", "update libqcn"});
}

void folders(const string& folder) {
  const string weights = folder + "/weights.safetensors", manifest = folder + "/manifest.json";
  refused("no folder", QCN_NO_FILE, [&] { read_manifest_in(folder + "/none"); });
  refused("a file", QCN_BAD_BUNDLE, [&] { read_manifest_in(manifest); });
  const qcn::Manifest whole = read_manifest_in(folder);
  const qcn::Artefact& artefact = *qcn::find_artefact(whole, "native");
  const auto read = [&] { return qcn::read_artefact(*qcn::files_in_folder(folder), artefact).size(); };
  const auto read_manifest = [&] { read_manifest_in(folder); };
  check(read() == kWeights.size(), "a file is read");
  check(!qcn::find_artefact(whole, "trt"), "there is no engine");

  string changed = kWeights;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  tiny::write(weights, changed);
  refused("an altered byte", QCN_BAD_BUNDLE, read,
          {"sha256", "; rebuild it: qcn export RUN --format native --out " + folder});
  tiny::write(weights, kWeights + "x");
  refused("a byte more", QCN_BAD_BUNDLE, read);
  std::filesystem::remove(weights);
  refused("a file gone", QCN_NO_FILE, read);
  tiny::write(folder + "-outside", kWeights);
  std::filesystem::create_symlink(folder + "-outside", weights);
  refused("a link out", QCN_BAD_BUNDLE, read, {"symbolic link"});
  std::filesystem::remove(weights);
  tiny::write(folder + "/inside", kWeights);
  std::filesystem::create_symlink("inside", weights);
  refused("a link inside", QCN_BAD_BUNDLE, read);
  std::filesystem::remove(weights);
  check(mkfifo(weights.c_str(), 0600) == 0, "mkfifo");
  refused("a pipe", QCN_BAD_BUNDLE, read);
  std::filesystem::remove(weights);
  std::filesystem::create_directory(weights);
  refused("a folder", QCN_BAD_BUNDLE, read);

  std::filesystem::remove(weights);
  std::filesystem::create_directory(folder + "/.kept");
  const string kept = folder + "/.kept/" + artefact.sha256;
  tiny::write(weights, changed);
  tiny::write(kept, changed);
  refused("another file kept", QCN_BAD_BUNDLE, read);
  tiny::write(kept, kWeights);
  check(read() == kWeights.size(), "a file that was kept is read");
  std::filesystem::remove(weights);
  check(read() == kWeights.size(), "it is read where the new one is not there");
  std::filesystem::remove(kept);
  std::filesystem::create_symlink(folder + "-outside", kept);
  refused("a kept file that leads out", QCN_NO_FILE, read);
  std::filesystem::remove_all(folder + "/.kept");
  std::filesystem::create_directory(folder + "-kept");
  tiny::write(folder + "-kept/" + artefact.sha256, kWeights);
  std::filesystem::create_directory_symlink(folder + "-kept", folder + "/.kept");
  refused("a folder of kept files that leads out", QCN_NO_FILE, read);
  std::filesystem::remove(folder + "/.kept");

  tiny::write(manifest, string(3 << 20, ' '));
  refused("a huge manifest", QCN_BAD_BUNDLE, read_manifest);
  std::filesystem::remove(manifest);
  refused("no manifest", QCN_BAD_BUNDLE, read_manifest, {"qcn export RUN"});
  tiny::write(folder + "/elsewhere", kManifest);
  std::filesystem::create_symlink("elsewhere", manifest);
  refused("a link for a manifest", QCN_BAD_BUNDLE, read_manifest);
}

string line_of(const string& text) { return qcn::sha256(text.data(), text.size()) + "  manifest.json\n"; }

// manifest.sha256: of the manifest, or of it and the one that it replaces.
void digests(const string& folder) {
  const string sums = folder + "/manifest.sha256", good = line_of(kManifest), other = line_of("another");
  const auto read_manifest = [&] { read_manifest_in(folder); };
  tiny::write_manifest(folder, kManifest);
  for (const string& text : {good, good + other, other + good, good + good}) {
    tiny::write(sums, text);
    check(read_manifest_in(folder).name == "tiny", "taken by manifest.sha256: " + text);
  }
  string upper = good;
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'f' ? c - 32 : c);
  const string short_one = good.substr(0, 63) + "  manifest.json\n";
  for (const string& text :
       {string(), other, other + other, other + other + good, good + other + other, good.substr(0, 79), good + "\n",
        "\n" + good, " " + good, upper, good + "x", short_one, good.substr(0, 64) + "  manifest.jsoN\n",
        good.substr(0, 64) + " *manifest.json\n", good.substr(0, 64) + "  manifest.json\r", string(80, '\0')}) {
    tiny::write(sums, text);
    refused("manifest.sha256: " + text, QCN_BAD_BUNDLE, read_manifest, {"manifest.sha256"});
  }
  every_change("manifest.sha256", good, good.size(),
               [&](const string& text) { qcn::check_digest(good.substr(0, 64), text); });
  std::filesystem::remove(sums);
  refused("no manifest.sha256", QCN_BAD_BUNDLE, read_manifest, {"manifest.sha256", "is missing"});
  tiny::write(folder + "/sums", good);
  std::filesystem::create_symlink("sums", sums);
  refused("a link for manifest.sha256", QCN_BAD_BUNDLE, read_manifest);
  std::filesystem::remove(sums);
  tiny::write_manifest(folder, kManifest);
}

// The self-test computes what it allows from the golden answers: a manifest cannot make all-zero weights pass.
void tolerances_bind(const string& folder) {
  const auto load = [&](const std::shared_ptr<const qcn::Files>& files, int self_test) {
    qcn::LoadRequest request;
    request.files = files, request.backend = QCN_BACKEND_NATIVE, request.self_test = self_test;
    qcn::load_model(request);
  };
  const qcn::Tolerance right = qcn::parse_manifest(kManifest).files[1].tolerance;
  const qcn::Tolerance wrong[] = {{1e30, 1e30},
                                  {right.logit, 1e30},
                                  {right.pose, right.logit},
                                  {std::nextafter(right.logit, 1), right.pose},
                                  {right.logit, right.pose / 2}};
  for (const qcn::Tolerance& one : wrong) {
    const string manifest = with_tolerance(one.logit, one.pose), sums = line_of(manifest);
    tiny::write_manifest(folder, manifest);
    const qcn_file files[] = {{"manifest.json", manifest.data(), manifest.size()},
                              {"manifest.sha256", sums.data(), sums.size()},
                              {"weights.safetensors", kWeights.data(), kWeights.size()},
                              {"golden.safetensors", kGolden.data(), kGolden.size()}};
    for (const auto& bundle : {qcn::files_in_folder(folder), qcn::files_in_memory(files, 4)}) {
      refused("another tolerance", QCN_BAD_BUNDLE, [&] { load(bundle, 1); },
              {"golden.safetensors", "weights.safetensors has other tolerances in manifest.json"});
      load(bundle, 0);  // nothing is compared
    }
  }
  networks::Network zeros = kNetwork;
  for (auto& [name, floats] : zeros.arrays) std::fill(floats.values.begin(), floats.values.end(), 0.0f);
  tiny::write(folder + "/weights.safetensors", zeros.weights());
  tiny::write_manifest(folder, tiny::manifest(zeros.weights(), kGolden));
  refused("all-zero weights", QCN_WRONG_ANSWER, [&] { load(qcn::files_in_folder(folder), 1); });
  tiny::write_manifest(folder, replaced(kManifest, R"("precision": "fp32")", R"("precision": "fp16")"));
  tiny::write(folder + "/weights.safetensors", kWeights);
  refused("another precision", QCN_BAD_BUNDLE, [&] { load(qcn::files_in_folder(folder), 1); },
          {"computes in fp32, but manifest.json says fp16"});
  tiny::write_manifest(folder, kManifest);
}

// What the golden file says of pre-processing and of the classes binds the manifest.
void golden_binds(const string& folder) {
  const auto load = [&](const string& manifest) {
    tiny::write_manifest(folder, manifest);
    qcn::LoadRequest request;
    request.files = qcn::files_in_folder(folder), request.backend = QCN_BACKEND_NATIVE;
    return qcn::load_model(request);
  };
  load(kManifest);
  const struct {
    const char *from, *to, *says;
  } altered[] = {
      {"\"mean\": [0.5]", "\"mean\": [0.5000001]", "pre-processing"},
      {"\"mean\": [0.5]", "\"mean\": [-0.5]", "pre-processing"},
      {"\"std\": [0.25]", "\"std\": [0.2500001]", "pre-processing"},
      {"\"std\": [0.25]", "\"std\": [25e10]", "pre-processing"},
      {"\"resize\": null", "\"resize\": 9", "pre-processing"},
      {"\"resize\": null", "\"resize\": 10000", "pre-processing"},
      {"\"resize\": null, \"crop\": 8", "\"resize\": 8, \"crop\": null", "pre-processing"},
      {"\"dataset\", \"mean\": [0.5], \"std\": [0.25]", "\"image\", \"mean\": [], \"std\": []", "pre-processing"},
      {"[\"cat\", \"dog\"", "[\"dog\", \"cat\"", "class 0"},
      {"\"é\"", "\"e\"", "class 2"},
      {"\"cat\"", "\"cats\"", "class 0"},
      {"[1, 10, 12]", "[1, 12, 10]", "the array 'image'"},
      {"[1, 10, 12]", "[1, 8, 8]", "the array 'image'"}};
  for (const auto& one : altered) {
    const string manifest = replaced(kManifest, one.from, one.to);
    refused(one.to, QCN_BAD_BUNDLE, [&] { load(manifest); }, {"golden.safetensors", one.says});
  }
  // The same names of classes in another golden file.
  const qcn::Manifest manifest = qcn::parse_manifest(kManifest);
  const std::pair<const char*, const char*> texts[] = {
      {"dog", "cow"},
      {"inputs_only\\\": \\\"[\\\\\\\"four", "inputs_only\\\": \\\"[\\\\\\\"five"},
      {"two", "one"},
      {"classes", "klasses"},
      {"inputs_only", "inputs_onlY"}};
  for (const auto& [from, to] : texts) {
    const qcn::TensorFile file(networks::bytes(replaced(kGolden, from, to)), qcn::kGoldenSchema);
    refused(string("golden with ") + to, QCN_BAD_BUNDLE, [&] { qcn::read_golden(file, manifest); });
  }
  // A label out of range.
  for (const std::int64_t first : {3, -2, 1 << 20}) {
    qcn::TensorFile file(networks::bytes(kGolden), qcn::kGoldenSchema);
    *reinterpret_cast<std::int64_t*>(const_cast<std::byte*>(file.at("label").data)) = first;
    refused("a label", QCN_BAD_BUNDLE, [&] { qcn::read_golden(file, manifest); }, {"label"});
  }
  tiny::write_manifest(folder, kManifest);
}

// Keys in PEM form; tests/keys.json has more, for Python too. This one's private key is 32 bytes of zeros.
void keys() {
  const string begin = "-----BEGIN PUBLIC KEY-----\n", end = "\n-----END PUBLIC KEY-----\n";
  const string letters = "MCowBQYDK2VwAyEAO2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=";
  const qcn::PublicKey key = qcn::parse_public_key(begin + letters + end);
  check(key[0] == 0x3b && key[31] == 0x29, "a key is read");
  const string weak = begin + letters.substr(0, 15) + "A" + string(43, 'A') + "=" + end;  // y = 0: of small order
  for (const string& text : {weak, string(3 << 20, 'A')}) {
    refused("a key " + text.substr(0, 80), QCN_BAD_ARGUMENT, [&] { qcn::parse_public_key(text); }, {"public key"});
  }
  every_change("a public key", begin + letters + end, begin.size() + letters.size(), [](const string& text) {
    try {
      qcn::parse_public_key(text);
    } catch (const qcn::Error& error) {
      throw qcn::Error(error.status == QCN_BAD_ARGUMENT ? QCN_BAD_BUNDLE : error.status, error.what());
    }
  });
}

// manifest.sig: that the right one holds is tested with signatures of `qcn sign`, in Python.
void signatures(const string& folder) {
  tiny::write_manifest(folder, kManifest);
  const qcn::PublicKey key = qcn::parse_public_key(
      "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAO2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=\n-----END PUBLIC "
      "KEY-----");
  const string signature = folder + "/manifest.sig";
  const auto read = [&] { read_manifest_in(folder, key); };
  refused("no signature", QCN_BAD_SIGNATURE, read, {"is not signed", "qcn sign"});
  for (const std::size_t size : {0, 1, 63, 64, 65, 4096}) {
    tiny::write(signature, string(size, 'x'));
    refused("a signature of " + to_string(size), QCN_BAD_SIGNATURE, read);
  }
  tiny::write(signature, string(4097, 'x'));
  refused("a huge signature", QCN_BAD_BUNDLE, read);
  std::filesystem::remove(signature);
  std::filesystem::create_symlink("sums", signature);
  refused("a link for a signature", QCN_BAD_BUNDLE, read);
  std::filesystem::remove(signature);
  check(read_manifest_in(folder).name == "tiny", "without a key, no signature is asked for");
}

// A bundle as a list of files in memory: the same checks, and what a list can be wrong in.
void files_in_memory() {
  const string sums = line_of(kManifest);
  using List = std::vector<std::pair<const char*, string>>;
  const List whole = {{"manifest.json", kManifest},
                      {"manifest.sha256", sums},
                      {"weights.safetensors", kWeights},
                      {"golden.safetensors", kGolden}};
  const auto load_files = [](const std::vector<qcn_file>& files, const std::optional<qcn::PublicKey>& key) {
    qcn::LoadRequest request;
    request.files = qcn::files_in_memory(files.data(), files.size());
    request.backend = QCN_BACKEND_NATIVE, request.self_test = 2, request.public_key = key;
    return qcn::load_model(request);
  };
  const auto load = [&](const List& list, const std::optional<qcn::PublicKey>& key = std::nullopt) {
    std::vector<qcn_file> files;
    for (const auto& [name, text] : list) files.push_back({name, text.data(), text.size()});
    return load_files(files, key);
  };
  const auto with = [&](std::size_t index, const string& text) {
    List list = whole;
    list[index].second = text;
    return list;
  };
  const auto without = [&](std::size_t index) {
    List list = whole;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(index));
    return list;
  };
  check(load(whole)->manifest.name == "tiny", "a bundle in memory");
  List more = whole;
  more.insert(more.begin(), {{"model.onnx", "not needed"}, {"", ""}, {"engines/x.engine", ""}});
  check(load(more)->manifest.name == "tiny", "files that are not needed");

  refused("no files", QCN_BAD_BUNDLE, [&] { load({}); }, {"the list of files is not a bundle", "no manifest.json"});
  refused("no manifest", QCN_BAD_BUNDLE, [&] { load(without(0)); }, {"no manifest.json", "qcn export RUN"});
  refused("no sums", QCN_BAD_BUNDLE, [&] { load(without(1)); }, {"manifest.sha256", "is missing"});
  refused("no weights", QCN_NO_FILE, [&] { load(without(2)); },
          {"the list of files has no weights.safetensors", "rebuild it: qcn export RUN --format native --out BUNDLE"});
  refused("no golden answers", QCN_NO_FILE, [&] { load(without(3)); }, {"no golden.safetensors"});
  for (const std::size_t index : {0, 1, 2, 3}) {
    const string& right = whole[index].second;
    string wrong = right;
    wrong[right.size() / 2] = static_cast<char>(wrong[right.size() / 2] ^ 1);
    for (const string& text : {wrong, right + "x", right.substr(1), string()}) {
      refused(string("an altered ") + whole[index].first, QCN_BAD_BUNDLE, [&] { load(with(index, text)); });
    }
  }
  refused("an altered hash", QCN_BAD_BUNDLE, [&] { load(with(2, kWeights.substr(1) + "x")); },
          {"weights.safetensors in the list of files was altered", "sha256"});
  refused("a huge manifest", QCN_BAD_BUNDLE, [&] { load(with(0, string(3 << 20, ' '))); }, {"at most"});
  refused("wrong answers", QCN_BAD_BUNDLE, [&] { load(with(3, tiny::golden(kNetwork, 0.5f))); }, {"altered"});
  const string other = tiny::golden(kNetwork, 0.5f), manifest = tiny::manifest(kWeights, other);
  refused("wrong golden answers", QCN_WRONG_ANSWER, [&] {
    load({{"manifest.json", manifest},
          {"manifest.sha256", line_of(manifest)},
          {"weights.safetensors", kWeights},
          {"golden.safetensors", other}});
  });

  const qcn::PublicKey key = qcn::parse_public_key(
      "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAO2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=\n-----END PUBLIC "
      "KEY-----");
  refused("no signature", QCN_BAD_SIGNATURE, [&] { load(whole, key); }, {"the list of files is not signed"});
  List is_signed = whole;
  is_signed.emplace_back("manifest.sig", string(64, 'x'));
  refused("a wrong signature", QCN_BAD_SIGNATURE, [&] { load(is_signed, key); }, {"manifest.sig in the list of files"});
  check(load(is_signed)->manifest.name == "tiny", "without a key, no signature is asked for");

  List twice = whole;
  twice.push_back(twice[2]);
  refused("a file twice", QCN_BAD_ARGUMENT, [&] { load(twice); }, {"'weights.safetensors', is in the list twice"});
  refused("no name", QCN_BAD_ARGUMENT, [&] { load_files({{nullptr, "x", 1}}, std::nullopt); }, {"name is NULL"});
  refused("no data", QCN_BAD_ARGUMENT,
          [&] {
            load_files({{"manifest.json", nullptr, 1}}, std::nullopt);
          },
          {"data is NULL"});
  refused("an empty manifest", QCN_BAD_BUNDLE, [&] { load_files({{"manifest.json", nullptr, 0}}, std::nullopt); });
}

}  // namespace

int main(int count, char** arguments) {
  const string folder =
      std::filesystem::absolute(count > 1 ? arguments[1] : ".").string() + "/hostile-" + to_string(getpid());
  tiny::write_bundle(folder);
  manifests();
  digests(folder);
  golden_binds(folder);
  tolerances_bind(folder);
  keys();
  signatures(folder);
  files_in_memory();
  folders(folder);
  altered_files();
  std::filesystem::remove_all(folder);
  std::filesystem::remove(folder + "-outside");
  std::filesystem::remove_all(folder + "-kept");
  return verdict();
}
