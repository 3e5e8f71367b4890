// Ed25519 and SHA-512: the vectors of RFC 8032 and FIPS 180-4, and signatures that are not quite right.
//
//     test_ed25519      runs these
//     test_ed25519 -    reads lines KEY SIGNATURE [MESSAGE] in hexadecimal digits, and prints 1 for each that holds
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "ed25519.h"
#include "sha512.h"

using std::string;
using std::to_string;

namespace {

string bytes(const string& digits) {
  string out;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    out += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return out;
}

string hex(const string& raw) {
  string digits;
  for (const char c : raw) {
    const unsigned byte = static_cast<unsigned char>(c);
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

string digest(const string& message) {
  const auto found = qcn::sha512(message);
  return string(found.begin(), found.end());
}

bool holds(const string& key, const string& message, const string& signature) {
  qcn::PublicKey raw;
  if (key.size() != raw.size()) return false;
  std::memcpy(raw.data(), key.data(), raw.size());
  return qcn::verify_ed25519(raw, message, signature);
}

struct Signed {
  string key, message, signature;
};

// RFC 8032, 7.1: TEST 1, 2, 3 and SHA(abc).
std::vector<Signed> vectors() {
  const std::vector<Signed> digits = {
      {"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
       "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
       "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
      {"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
       "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
       "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
      {"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
       "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
       "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
      {"ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf", hex(digest("abc")),
       "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
       "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"}};
  std::vector<Signed> raw;
  for (const Signed& one : digits) raw.push_back({bytes(one.key), bytes(one.message), bytes(one.signature)});
  return raw;
}

void digests() {
  const std::pair<string, string> cases[] = {
      {"",
       "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce"
       "47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"},
      {"abc",
       "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
       "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
       "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
       "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018"
       "501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909"},
  };
  for (const auto& [message, expected] : cases) check(hex(digest(message)) == expected, "SHA-512 of " + message);
}

// Every single bit of the key, the signature and the message.
void altered_bits() {
  for (const Signed& good : vectors()) {
    check(holds(good.key, good.message, good.signature), "a vector of RFC 8032: " + hex(good.key));
    for (std::size_t place = 0; place < 8 * (32 + 64 + good.message.size()); ++place) {
      Signed bad = good;
      string& part = place < 256 ? bad.key : place < 768 ? bad.signature : bad.message;
      const std::size_t at = place < 256 ? place : place < 768 ? place - 256 : place - 768;
      part[at / 8] = static_cast<char>(part[at / 8] ^ 1 << at % 8);
      check(!holds(bad.key, bad.message, bad.signature), "bit " + to_string(place) + " altered of " + hex(good.key));
    }
    check(!holds(good.key, good.message + '\0', good.signature), "a longer message");
    for (const std::size_t size : {0, 1, 32, 63}) {
      check(!holds(good.key, good.message, good.signature.substr(0, size)), "a signature cut to " + to_string(size));
    }
    check(!holds(good.key, good.message, good.signature + '\0'), "a longer signature");
  }
}

// S + L, which has the same multiple of the base point: whoever takes it takes a second signature of the same message.
void malleable() {
  const string order = bytes("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
  for (Signed one : vectors()) {
    unsigned carry = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      carry += static_cast<unsigned char>(one.signature[32 + i]) +
               static_cast<unsigned>(static_cast<unsigned char>(order[i]));
      one.signature[32 + i] = static_cast<char>(carry & 0xFF);
      carry >>= 8;
    }
    check(carry == 0 && !holds(one.key, one.message, one.signature), "S + L");
  }
}

// The eight points of small order and their other encodings. With R neutral and S zero, "signatures" by them hold for
// one message in eight, or for all.
void small_orders() {
  const string zeros(64, '0'), ones = "ff", rest = string(60, 'f');
  const string y = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc",
               other = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03";
  std::vector<string> keys = {"01" + string(62, '0'), zeros, "00" + string(60, '0') + "80",
                              "01" + string(60, '0') + "80"};
  for (const char* first : {"ec", "ed", "ee"}) {
    for (const char* last : {"7f", "ff"}) keys.push_back(first + rest + last);
  }
  for (const char* last : {"05", "85"}) keys.push_back(y + last);
  for (const char* last : {"7a", "fa"}) keys.push_back(other + last);
  const string neutral = bytes("01" + string(62, '0'));
  for (const string& digits : keys) {
    const string key = bytes(digits);
    check(key.size() == 32, "the test's key " + digits);
    for (int i = 0; i < 16; ++i) {  // of two orders one signature in eight would hold
      check(!holds(key, to_string(i), neutral + string(32, '\0')), "a key of small order: " + digits);
      check(!holds(key, to_string(i), key + string(32, '\0')), "a key of small order as R too: " + digits);
    }
  }
}

void answer_lines() {
  for (string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    string key, signature, message;
    words >> key >> signature >> message;
    std::printf("%d\n", holds(bytes(key), bytes(message), bytes(signature)) ? 1 : 0);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "-") == 0) {
    answer_lines();
    return 0;
  }
  digests();
  altered_bits();
  malleable();
  small_orders();
  return verdict();
}
