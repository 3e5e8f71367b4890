// tolerances BUNDLE: what the self-test allows, by output and precision. tests/test_deploy.py compares it with
// Python's.
#include <cstdio>
#include <memory>

#include "bundle.h"
#include "self_test.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const qcn::Manifest manifest = qcn::read_manifest(arguments[1]);
  const qcn::TensorFile file(qcn::read_artefact(arguments[1], *qcn::find_artefact(manifest, "golden")));
  const qcn::Golden golden = qcn::read_golden(file, manifest.structure);
  for (const char* precision : {"fp32", "fp16", "bf16"}) {
    std::printf("%s activation %.17g\n", precision, qcn::tolerance(golden.activation, precision));
    std::printf("%s pose %.17g\n", precision, qcn::tolerance(golden.pose, precision));
  }
  return 0;
}
