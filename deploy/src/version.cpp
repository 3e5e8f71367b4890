#include "qcn/qcn.h"
#include "structures.h"

const char* qcn_version(void) {
#define QCN_TEXT_(x) #x
#define QCN_TEXT(x) QCN_TEXT_(x)
  return QCN_TEXT(QCN_VERSION_MAJOR) "." QCN_TEXT(QCN_VERSION_MINOR) "." QCN_TEXT(QCN_VERSION_PATCH);
}

const char* qcn_status_name(qcn_status status) {
  constexpr const char* kNames[] = {"QCN_OK",           "QCN_BAD_ARGUMENT",  "QCN_NO_FILE",       "QCN_BAD_BUNDLE",
                                    "QCN_BAD_ENGINE",   "QCN_WRONG_ANSWER",  "QCN_NO_BACKEND",    "QCN_NO_MEMORY",
                                    "QCN_DEVICE_ERROR", "QCN_BAD_SIGNATURE", "QCN_INTERNAL_ERROR"};
  static_assert(sizeof kNames / sizeof *kNames == QCN_INTERNAL_ERROR + 1);
  const int number = qcn::number_of(status);
  return number >= QCN_OK && number <= QCN_INTERNAL_ERROR ? kNames[number] : "no qcn_status";
}
