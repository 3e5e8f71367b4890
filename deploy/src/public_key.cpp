#include "public_key.h"

#include <algorithm>
#include <string>

#include "error.h"

namespace qcn {
namespace {

constexpr std::string_view kBegin = "-----BEGIN PUBLIC KEY-----", kEnd = "-----END PUBLIC KEY-----";
constexpr std::string_view kSpaces = " \t\r\n";
// The 44 bytes of the key's DER form are these twelve (a SEQUENCE, the OID 1.3.101.112, a BIT STRING), and the key.
constexpr unsigned char kPrefix[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};

[[noreturn]] void refuse(const std::string& why) { throw Error(QCN_BAD_ARGUMENT, "the public key " + why); }

// Base64 without gaps or padding, each four letters three bytes: 60 letters hold the 44 bytes and one '=' at the end.
std::string decoded(std::string_view letters) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char letter : letters) {
    const std::size_t value = kAlphabet.find(letter);
    if (value == std::string_view::npos) return "";
    bits = bits << 6 | static_cast<unsigned>(value), count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
    bits &= (1u << count) - 1;
  }
  return bits == 0 ? bytes : "";
}

}  // namespace

PublicKey parse_public_key(std::string_view pem) {
  if (pem.find("PRIVATE KEY-----") != std::string_view::npos) {
    refuse(
        "given is a private key, which belongs on no device: `openssl pkey -in KEY.pem -pubout` prints its public key");
  }
  // One block and nothing else but spaces and line ends.
  pem.remove_prefix(std::min(pem.find_first_not_of(kSpaces), pem.size()));
  pem.remove_suffix(pem.size() - (pem.find_last_not_of(kSpaces) + 1));
  const std::size_t frame = kBegin.size() + kEnd.size();
  if (pem.size() < frame || pem.substr(0, kBegin.size()) != kBegin || pem.substr(pem.size() - kEnd.size()) != kEnd) {
    refuse("is not in PEM form: it must begin with " + std::string(kBegin) + " and end with " + std::string(kEnd));
  }
  std::string letters(pem.substr(kBegin.size(), pem.size() - frame));
  letters.erase(std::remove_if(letters.begin(), letters.end(),
                               [](char c) { return kSpaces.find(c) != std::string_view::npos; }),
                letters.end());
  PublicKey key;
  const bool padded = letters.size() == 60 && letters.back() == '=';
  const std::string bytes = padded ? decoded(std::string_view(letters).substr(0, 59)) : "";
  if (bytes.size() != sizeof kPrefix + key.size() ||
      !std::equal(std::begin(kPrefix), std::end(kPrefix), reinterpret_cast<const unsigned char*>(bytes.data()))) {
    refuse("is not an Ed25519 key: `qcn sign --new-key KEY.pem` makes a key pair");
  }
  std::copy_n(reinterpret_cast<const unsigned char*>(bytes.data()) + sizeof kPrefix, key.size(), key.begin());
  if (!is_public_key(key)) refuse("is not a point on the curve, or is a weak key of small order");
  return key;
}

}  // namespace qcn
