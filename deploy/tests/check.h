// What the tests of the library's inside have in common: every failure is printed, and counted.
#ifndef QCN_TESTS_CHECK_H
#define QCN_TESTS_CHECK_H

#include <cstdio>
#include <exception>
#include <string>

#include "error.h"

inline int failures = 0;

inline void check(bool good, const std::string& what) {
  if (good) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

// What a call that must be refused says. Anything but an Error of this status is a failure.
template <typename Call>
std::string refused(const std::string& what, qcn_status status, const Call& call) {
  try {
    call();
  } catch (const qcn::Error& error) {
    check(error.status == status, what + ": " + qcn_status_name(error.status) + ", " + error.what());
    return error.what();
  } catch (const std::exception& error) {
    check(false, what + ": " + error.what());
    return "";
  }
  check(false, what + ": accepted");
  return "";
}

// True if it was accepted; what is no bundle may only be refused as such.
template <typename Call>
bool accepted_or_refused(const std::string& what, const Call& call) {
  try {
    call();
    return true;
  } catch (const qcn::Error& error) {
    check(error.status == QCN_BAD_BUNDLE, what + ": " + qcn_status_name(error.status) + ", " + error.what());
  } catch (const std::exception& error) {
    check(false, what + ": " + error.what());
  }
  return false;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#endif
