// Public keys in PEM form: the cases of tests/keys.json, which Python is tested on as well.
//
//     test_keys keys.json
#include <string>

#include "check.h"
#include "json.h"
#include "public_key.h"
#include "tiny_bundle.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const qcn::Json json = qcn::Json::parse(tiny::read(arguments[1]));
  const qcn::JsonList& cases = json.at("cases", "the file").list("cases");
  check(cases.size() >= 30, "there are cases");
  for (const qcn::Json& one : cases) {
    const std::string name = one["name"].text("name"), pem = one["pem"].text("pem");
    if (one["taken"].boolean("taken")) {
      const qcn::PublicKey key = qcn::parse_public_key(pem);
      check(key[0] == 0x3b && key[31] == 0x29, name);
    } else {
      refused(name, QCN_BAD_ARGUMENT, [&] { qcn::parse_public_key(pem); }, {"public key"});
    }
  }
  return verdict();
}
