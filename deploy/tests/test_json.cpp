// JSON, text and hashes: what is right is read, and what is not is refused.
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "json.h"
#include "sha256.h"
#include "text.h"

using qcn::Json;
using std::string;

static void values() {
  check(std::get<std::int64_t>(Json::parse(" -12 ").value) == -12, "a whole number");
  check(std::get<std::int64_t>(Json::parse("9223372036854775807").value) == INT64_MAX, "the largest whole number");
  check(std::get<double>(Json::parse("9223372036854775808").value) == 9223372036854775808.0, "one more");
  check(std::get<double>(Json::parse("1.0").value) == 1.0, "1.0 is not a whole number");
  check(std::get<double>(Json::parse("-1.5E-3").value) == -1.5e-3, "an exponent");
  check(std::get<double>(Json::parse("0.1").value) == 0.1, "0.1 to the last bit");
  check(std::get<bool>(Json::parse("true").value) && Json::parse("null").is_null(), "words");
  check(std::get<string>(Json::parse(R"("\u0041\u00e9\u20ac\ud83d\ude00\"\\\/\b\f\n\r\t")").value) ==
            "Aé€😀\"\\/\b\f\n\r\t",
        "escapes");
  check(std::get<string>(Json::parse("\"a\\u0000b\"").value) == string("a\0b", 3), "a zero in a text");
  const Json object = Json::parse(R"({"b": [1, [], {}], "a": {"c": null}})");
  check(object.at("b", "it").list("b").size() == 3 && object.at("a", "it").find("c")->is_null(), "an object");
  check(!object.find("c") && !object.at("b", "it").find("a"), "what is not there");
}

static void not_json() {
  const string listed =
      R"(| |{|}|[|[1|[1,|[1,]|[,1]|{"a"}|{"a":}|{"a":1,}|{a:1}|{1:1}|{"a" 1}|"|"a|"\"|"\x"|"\u12"|"\u12g4"|"\ud800")"
      R"(|"\udc00"|"\ud800\u0041"|"\u+123"|"\u-123"|"\u 123"|01|-|+1|.5|1.|1e|1e+|0x10|1_0|NaN|Infinity|-Infinity|nan)"
      R"(|tru|truee|True|nul|1 2|[1 2]|[1]]|{} {}|1e999|-1e999|'a'|{"a":1,"a":2}|{"a":1,"\u0061":2})";
  std::vector<string> wrong = {"\"\t\"",       "// c\n1",          "\xEF\xBB\xBF{}",       "\"\xFF\"",
                               "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\""};
  std::istringstream texts(listed);
  for (string text; std::getline(texts, text, '|');) wrong.push_back(text);
  for (const string& text : wrong) {
    refused("JSON " + text, QCN_BAD_BUNDLE, [&] { Json::parse(text); });
  }
  refused("a zero byte", QCN_BAD_BUNDLE, [] { Json::parse(std::string_view("1\0", 2)); });
  const auto nested = [](std::size_t depth) { return string(depth, '[') + string(depth, ']'); };
  check(accepted_or_refused("64 levels", [&] { Json::parse(nested(64)); }), "64 levels");
  refused("66 levels", QCN_BAD_BUNDLE, [&] { Json::parse(nested(66)); });
  refused("a million levels", QCN_BAD_BUNDLE, [&] { Json::parse(string(1000000, '[')); });
  refused("two million bytes", QCN_BAD_BUNDLE, [&] { Json::parse(string(2000000, ' ') + "1"); });
  check(std::get<double>(Json::parse(string(100000, '9').substr(0, 300)).value) > 1e299, "300 digits");
  refused("100,000 digits", QCN_BAD_BUNDLE, [&] { Json::parse(string(100000, '9')); });
  check(accepted_or_refused("a long fraction", [&] { Json::parse("0." + string(100000, '1')); }), "a long fraction");
}

static void kinds() {
  const Json object = Json::parse(R"({"whole": 3, "real": 3.5, "text": "x", "list": [1]})");
  const auto entry = [&](const char* name) -> const Json& { return object.at(name, "it"); };
  check(entry("whole").integer("whole", 1, 3) == 3, "a whole number in its range");
  check(contains(refused("too large", QCN_BAD_BUNDLE, [&] { entry("whole").integer("depth", 1, 2); }), "depth"),
        "the message names the entry");
  refused("a number for a whole number", QCN_BAD_BUNDLE, [&] { entry("real").integer("it", 0, 9); });
  check(entry("whole").real("it") == 3 && entry("real").real("it") == 3.5, "numbers, whole or not");
  refused("a text for a number", QCN_BAD_BUNDLE, [&] { entry("text").real("it"); });
  check(Json::parse("true").boolean("it") && !Json::parse("false").boolean("it"), "true and false");
  refused("a number for true or false", QCN_BAD_BUNDLE, [&] { entry("whole").boolean("it"); });
  refused("a text for a list", QCN_BAD_BUNDLE, [&] { entry("text").list("it"); });
  refused("a list for a text", QCN_BAD_BUNDLE, [&] { entry("list").text("it"); });
  refused("no such entry", QCN_BAD_BUNDLE, [&] { entry("none"); });
  refused("an unknown entry", QCN_BAD_BUNDLE, [&] { object.check_entries({"whole", "real", "text"}, "it"); });
}

static void texts() {
  check(qcn::printable("a café, 物") && qcn::printable(""), "printable text");
  for (const string text :
       {"\n", "\x7F", "\xC2\x85", "\xE2\x80\xAE", "\xEF\xBB\xBF", "\xFF", "a\xC2\xA0", "\xF3\xA0\x80\x81"}) {
    check(!qcn::printable(text), "not printable: " + text);
  }
  check(qcn::quoted("a\n\xFF"
                    "b") == "'a??b'",
        "odd text in a message: " + qcn::quoted("a\n\xFF"
                                                "b"));
  check(qcn::quoted(string(1000, 'x')).size() < 100, "long text in a message");
  check(qcn::whole_characters("aé€", 9) == 6 && qcn::whole_characters("aé€", 6) == 6, "a text that fits");
  check(qcn::whole_characters("aé€", 5) == 3 && qcn::whole_characters("aé€", 2) == 1, "no character is cut in two");
  check(qcn::whole_characters("é", 1) == 0 && qcn::whole_characters("", 5) == 0, "nothing is left");
  check(qcn::shell_word("a/b-1.0") == "a/b-1.0" && qcn::shell_word("") == "''", "plain words of a shell");
  check(qcn::shell_word("a b;$c") == "'a b;$c'" && qcn::shell_word("a'b") == "'a'\"'\"'b'", "words in quotation marks");
}

static void hashes() {
  const auto hash = [](const string& text) { return qcn::sha256(text.data(), text.size()); };
  check(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "sha256 of nothing");
  check(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "sha256 of abc");
  check(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        "sha256 of two blocks");
  check(hash(string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
        "sha256 of a million");
  // Every length around the ends of blocks, by the processor's instructions and without.
  for (std::size_t length = 0; length < 200; ++length) {
    const string text(length, 'q');
    check(hash(text) == qcn::plain_sha256(text.data(), text.size()), "sha256 of " + std::to_string(length) + " bytes");
  }
}

int main() {
  values();
  not_json();
  kinds();
  texts();
  hashes();
  return verdict();
}
