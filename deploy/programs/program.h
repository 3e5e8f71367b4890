// What the programs have in common: the options that load a model, the exit codes, and a main that reports errors.
#ifndef QCN_PROGRAMS_PROGRAM_H
#define QCN_PROGRAMS_PROGRAM_H

#include <qcn/qcn.hpp>
#include <string>

#include "arguments.h"

namespace qcn_programs {

// The exit codes of the Python commands. kFailed: a file or a check failed; kMissing: this machine lacks something.
enum Exit { kDone = 0, kFailed = 1, kUsage = 2, kMissing = 3 };

// How to load a bundle, from the command line.
struct ModelOptions {
  std::string backend = "auto", precision;
  int threads = 0, device = 0;
  std::string public_key;  // a file
  bool no_self_test = false, verbose = false;
  std::string field;  // a folder
  int field_pictures = 0;

  void add_to(Arguments& arguments);
  void add_field_to(Arguments& arguments);
  qcn::Model load(const std::string& bundle) const;  // prints warnings of the library, and with --verbose all it logs
};

// "horse 95.3 %", or "unknown (most like horse, 41.0 %)".
std::string words(const std::string& label, double probability, bool known);

// ", seen from azimuth 120°, elevation 30° (± 12°)"; no elevation where it is NaN.
std::string seen_from(double azimuth, double elevation, double spread);

// "name", "backend" and "precision", as entries of a JSON object.
std::string json_entries(const qcn_model_info& info);

// Runs a program's body. An exception becomes a line on stderr and an exit code.
int guarded_main(const char* program, int (*body)(int, char**), int argc, char** argv);

}  // namespace qcn_programs

#endif
