// Whole bundles of tiny random networks, for tests that take bundles apart.
#ifndef QCN_TESTS_TINY_BUNDLE_H
#define QCN_TESTS_TINY_BUNDLE_H

#include <string>

#include "random_network.h"

namespace tiny {

constexpr int kChannels = 1, kSide = 8, kClasses = 3, kRows = 4;

// The network, which a manifest of "tiny" describes: a QCN, or a CNN, which has no poses.
networks::Network network(bool poses = true);
std::string golden(const networks::Network& network, float wrong = 0);  // wrong: added to the first answer
std::string manifest(const std::string& weights, const std::string& golden, bool poses = true);

void write(const std::string& path, const std::string& text);
std::string read(const std::string& path);
void write_manifest(const std::string& folder, const std::string& text);  // and manifest.sha256
void write_bundle(const std::string& folder, bool poses = true);          // makes the folder

}  // namespace tiny

#endif
