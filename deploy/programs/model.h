// A loaded bundle for the programs: its options on the command line, and its C handles as owners.
#ifndef QCN_PROGRAMS_MODEL_H
#define QCN_PROGRAMS_MODEL_H

#include <qcn/qcn.h>

#include <memory>
#include <string>

#include "arguments.h"

namespace qcn_programs {

struct ModelOptions {
  std::string backend = "auto", precision;
  int threads = 0, device = 0;
  bool no_self_test = false, verbose = false;

  void add_to(Arguments& arguments);
};

// A call of the library that failed: its message and what the program should end with.
class LibraryError : public std::runtime_error {
 public:
  LibraryError(qcn_status status, const std::string& message) : std::runtime_error(message), exit(exit_for(status)) {}
  const Exit exit;

 private:
  static Exit exit_for(qcn_status status);
};

void succeed(qcn_status status);  // throws LibraryError

class Session {
 public:
  explicit Session(const qcn_model* model);
  qcn_session* get() const { return session_.get(); }

 private:
  std::unique_ptr<qcn_session, void (*)(qcn_session*)> session_;
};

class Model {
 public:
  Model(const std::string& bundle, const ModelOptions& options);
  const qcn_model* get() const { return model_.get(); }
  const qcn_model_info& info() const { return info_; }
  std::string class_name(int index) const { return qcn_model_class(get(), index); }
  // "name", "backend" and "precision", as entries of a JSON object.
  std::string json() const;

 private:
  std::unique_ptr<qcn_model, void (*)(qcn_model*)> model_;
  qcn_model_info info_{};
};

// Runs a program's body; what it throws becomes a line on stderr and an exit code.
int guarded_main(const char* program, int (*body)(int, char**), int argc, char** argv);

}  // namespace qcn_programs

#endif
