// make_tiny_bundle FOLDER [cnn]: writes the bundle of a tiny network, for tests that are not in C++ or not of the
// inside.
#include <cstring>

#include "tiny_bundle.h"

int main(int count, char** arguments) {
  const bool cnn = count == 3 && std::strcmp(arguments[2], "cnn") == 0;
  if (count != 2 && !cnn) return 2;
  tiny::write_bundle(arguments[1], !cnn);
  return 0;
}
