// What the tests have in common: every failure is printed, and counted.
#ifndef QCN_TESTS_CHECK_H
#define QCN_TESTS_CHECK_H

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "error.h"

inline int failures = 0;

inline void check(bool good, const std::string& what) {
  if (good) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

// What a test's main returns.
inline int verdict() {
  std::puts(failures ? "FAILED" : "all passed");
  return failures ? 1 : 0;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What a call that must be refused says, which has to contain these parts. Anything but an Error of this status is a
// failure.
template <typename Call>
std::string refused(const std::string& what, qcn_status status, const Call& call,
                    const std::vector<std::string>& parts = {}) {
  try {
    call();
  } catch (const qcn::Error& error) {
    check(error.status == status, what + ": " + qcn_status_name(error.status) + ", " + error.what());
    for (const std::string& part : parts) {
      check(contains(error.what(), part), what + ": '" + part + "' is not in: " + error.what());
    }
    return error.what();
  } catch (const std::exception& error) {
    check(false, what + ": " + error.what());
    return "";
  }
  check(false, what + ": accepted");
  return "";
}

// True if it was accepted; what is not a bundle may only be refused as such.
template <typename Call>
bool accepted_or_refused(const std::string& what, const Call& call) {
  bool accepted = false;
  refused(what, QCN_BAD_BUNDLE, [&] {
    call();
    accepted = true;
    qcn::refuse_bundle("accepted");
  });
  return accepted;
}

#endif
