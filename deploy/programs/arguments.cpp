#include "arguments.h"

#include <qcn/qcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace qcn_programs {
namespace {

template <typename Number, typename Parse>
Number parsed(const std::string& name, const std::string& text, Number least, Number most, const Parse& parse) {
  std::size_t used = 0;
  Number value{};
  try {
    value = static_cast<Number>(parse(text, &used));
  } catch (const std::logic_error&) {  // from std::stoi and std::stod
    used = 0;
  }
  if (used == 0 || used != text.size() || !(value >= least && value <= most)) {
    char range[80];
    std::snprintf(range, sizeof range, "%.10g to %.10g", static_cast<double>(least), static_cast<double>(most));
    throw UsageError(name + " must be a number from " + range + ", not '" + text + "'");
  }
  return value;
}

// The length in bytes of the UTF-8 character that starts here; 0 if it is not well-formed.
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(at);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : first < 0xC2                  ? 0
                             : first < 0xF0                  ? 3
                             : first < 0xF5                  ? 4
                                                             : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);  // overlong forms, surrogates, beyond U+10FFFF
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
      (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

}  // namespace

void Arguments::flag(const std::string& name, const std::string& help, bool& value) {
  options_.push_back({name, help, false, [&value](const std::string&) { value = true; }});
}

void Arguments::text(const std::string& name, const std::string& help, std::string& value) {
  options_.push_back({name, help, true, [&value](const std::string& text) { value = text; }});
}

void Arguments::choice(const std::string& name, const std::string& help, const std::vector<std::string>& of,
                       std::string& value) {
  std::string list;
  for (const auto& one : of) list += (list.empty() ? "" : one == of.back() ? " or " : ", ") + one;
  options_.push_back({name, help + ": " + list, true, [=, &value](const std::string& text) {
                        if (std::find(of.begin(), of.end(), text) == of.end()) {
                          throw UsageError(name + " must be " + list + ", not '" + text + "'");
                        }
                        value = text;
                      }});
}

void Arguments::number(const std::string& name, const std::string& help, int least, int most, int& value) {
  options_.push_back({name, help, true, [=, &value](const std::string& text) {
                        value = parsed(name, text, least, most,
                                       [](const std::string& s, std::size_t* used) { return std::stoi(s, used); });
                      }});
}

void Arguments::number(const std::string& name, const std::string& help, double least, double most, double& value) {
  options_.push_back({name, help, true, [=, &value](const std::string& text) {
                        value = parsed(name, text, least, most,
                                       [](const std::string& s, std::size_t* used) { return std::stod(s, used); });
                      }});
}

std::vector<std::string> Arguments::parse(int argc, char** argv) const {
  std::vector<std::string> rest;
  bool only_rest = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (only_rest || argument.size() < 2 || argument[0] != '-') {
      rest.push_back(argument);
      continue;
    }
    if (argument == "--") {
      only_rest = true;
      continue;
    }
    if (argument == "--help" || argument == "-h") {
      std::printf("usage: %s\n\n%s\n\n", usage_.c_str(), about_.c_str());
      for (const Option& option : options_) {
        std::printf("  %-22s %s\n", (option.name + (option.takes_value ? " VALUE" : "")).c_str(), option.help.c_str());
      }
      std::printf("  %-22s %s\n", "--version", "print the version of the library");
      std::exit(0);
    }
    if (argument == "--version") {
      std::printf("%s\n", qcn_version());
      std::exit(0);
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto option = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
    if (option == options_.end()) throw UsageError("there is no option " + name + ": see --help");
    if (!option->takes_value) {
      if (equals != std::string::npos) throw UsageError(name + " takes no value");
      option->set("");
    } else if (equals != std::string::npos) {
      option->set(argument.substr(equals + 1));
    } else if (i + 1 < argc) {
      option->set(argv[++i]);
    } else {
      throw UsageError(name + " needs a value");
    }
  }
  return rest;
}

std::string readable(const std::string& text) {
  std::string out;
  char escape[12];
  for (std::size_t i = 0, length; i < text.size(); i += length) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(text[i + at])); };
    length = utf8_length(text, i);
    const unsigned code = length == 2   ? (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F)
                          : length == 3 ? (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)
                                        : byte(0);
    // Control characters, and what is invisible or turns text around.
    const bool hidden = length < 2 ? code < 0x20 || code >= 0x7F
                                   : length < 4 && (code < 0xA0 || code == 0xAD || code == 0x61C || code == 0xFEFF ||
                                                    (code >= 0x200B && code <= 0x200F) ||
                                                    (code >= 0x2028 && code <= 0x202E) ||
                                                    (code >= 0x2060 && code <= 0x206F));
    length = std::max<std::size_t>(length, 1);
    if (!hidden) {
      out += text.substr(i, length);
      continue;
    }
    std::snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
    out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : code == '\r' ? "\\r" : escape;
  }
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text, i);
    char escape[8];
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++i;
    } else if (c < 0x20 || c == '"' || c == '\\' || c == 0x7F) {
      std::snprintf(escape, sizeof escape, c == '"' || c == '\\' ? "\\%c" : "\\u%04x", c);
      out += escape;
      ++i;
    } else if (c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0) {  // control characters too
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(text[i + 1])));
      out += escape;
      i += length;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out + '"';
}

std::string json_number(double value, int digits) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

}  // namespace qcn_programs
