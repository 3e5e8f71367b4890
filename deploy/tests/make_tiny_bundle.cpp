// make_tiny_bundle FOLDER: writes the bundle of a tiny network, for tests that are not in C++ or not of the inside.
#include "tiny_bundle.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  tiny::write_bundle(arguments[1]);
  return 0;
}
