// Parses the command line of the programs: options with two dashes, and arguments in order. Writes their --help.
#ifndef QCN_PROGRAMS_ARGUMENTS_H
#define QCN_PROGRAMS_ARGUMENTS_H

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace qcn_programs {

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Arguments {
 public:
  Arguments(std::string usage, std::string about) : usage_(std::move(usage)), about_(std::move(about)) {}

  void flag(const std::string& name, const std::string& help, bool& value);
  void text(const std::string& name, const std::string& help, std::string& value);
  void choice(const std::string& name, const std::string& help, const std::vector<std::string>& of, std::string& value);
  void number(const std::string& name, const std::string& help, int least, int most, int& value);
  void number(const std::string& name, const std::string& help, double least, double most, double& value);

  // Returns the arguments without dashes. Throws UsageError. --help and --version end the program.
  std::vector<std::string> parse(int argc, char** argv) const;

 private:
  struct Option {
    std::string name, help;
    bool takes_value;
    std::function<void(const std::string&)> set;
  };
  std::string usage_, about_;
  std::vector<Option> options_;
};

// Text from a stranger's file, or its name, for a terminal: control characters, and others that show nothing, are
// written out, as qcn/terminal/text.py does. ESC becomes \x1b.
std::string readable(const std::string& text);

// Text in quotes, as in JSON. Bytes that are not UTF-8 become U+FFFD.
std::string quoted(const std::string& text);
// A number as in JSON: null for NaN and infinity. 9 digits tell all floats apart, 17 all doubles.
std::string json_number(double value, int digits = 9);

}  // namespace qcn_programs

#endif
