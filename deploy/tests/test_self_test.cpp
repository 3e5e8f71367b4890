// The self-test of a loaded bundle: right answers pass, and a wrong one is named.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "check.h"
#include "golden.h"
#include "manifest.h"
#include "program.h"
#include "self_test.h"
#include "tensors.h"
#include "tiny_bundle.h"

namespace {

using std::string;

const networks::Network kNetwork = tiny::network();
const string kGolden = tiny::golden(kNetwork), kManifest = tiny::manifest(kNetwork.weights(), kGolden);

// Pre-processing that computes something else than in training.
void wrong_preprocessing() {
  const qcn::TensorFile file(networks::bytes(kGolden), qcn::kGoldenSchema);
  qcn::Manifest manifest = qcn::parse_manifest(kManifest);
  const qcn::Golden golden = qcn::read_golden(file, manifest);
  qcn::check_preprocessing(manifest, golden);
  manifest.preprocessing.mean[0] = 0.5000001;
  refused("another mean", QCN_WRONG_ANSWER, [&] { qcn::check_preprocessing(manifest, golden); }, {"'one'", "expected"});
  manifest.preprocessing = {manifest.preprocessing.stored, std::nullopt, tiny::kSide, true, {}, {}};
  refused("by image", QCN_WRONG_ANSWER, [&] { qcn::check_preprocessing(manifest, golden); });
}

// A backend that gives what it is told to.
class Fixed : public qcn::Backend {
 public:
  Fixed(const float* logit, const float* pose, std::size_t rows)
      : logit_(logit), pose_(pose), rows_(rows) {}
  std::unique_ptr<qcn::Runner> runner(void*) const override { return std::make_unique<Run>(*this); }
  string name() const override { return "fixed"; }
  string precision() const override { return "fp32"; }
  int max_batch() const override { return 1; }

 private:
  struct Run : qcn::Runner {
    explicit Run(const Fixed& all) : all_(all) {}
    void run(const float*, int, float* logit, float* pose) override {
      std::copy_n(all_.logit_ + next_ * tiny::kClasses, tiny::kClasses, logit);
      std::copy_n(all_.pose_ + next_ * tiny::kClasses * 3, tiny::kClasses * 3, pose);
      next_ = (next_ + 1) % all_.rows_;
    }
    const Fixed& all_;
    std::size_t next_ = 0;
  };
  const float *logit_, *pose_;
  std::size_t rows_;
};

void self_tests() {
  const qcn::TensorFile file(networks::bytes(kGolden), qcn::kGoldenSchema);
  const qcn::Manifest manifest = qcn::parse_manifest(kManifest);
  const qcn::Signature& signature = manifest.signature;
  const qcn::Golden golden = qcn::read_golden(file, manifest);
  const qcn::Tolerance tolerance = {1e-5, 2e-5};
  const auto native = qcn::native_backend(qcn::program::Program(kNetwork.file()));
  const auto test = [&](const qcn::Backend& backend, bool all) {
    return qcn::self_test(backend, tolerance, golden, signature, all);
  };
  check(contains(test(*native, false), "3 of 4"), "three");
  check(contains(test(*native, true), "4 of 4") && contains(test(*native, true), "of a pose"), "all");

  std::vector<float> logit(golden.logit, golden.logit + tiny::kRows * tiny::kClasses);
  std::vector<float> pose(golden.pose, golden.pose + tiny::kRows * tiny::kClasses * 3);
  Fixed fixed(logit.data(), pose.data(), tiny::kRows);
  test(fixed, true);
  const float right = pose[14];
  for (const float wrong : {right + 1e-4f, right - 1e-4f, std::nanf(""), INFINITY}) {
    pose[14] = wrong;
    refused("a wrong pose", QCN_WRONG_ANSWER, [&] { test(fixed, true); }, {"'two'", "pose[5]", "expected"});
  }
  pose[14] = right + 1e-4f;
  qcn::self_test(fixed, {1e-5, 2e-4}, golden, signature, true);  // each output has its own tolerance
  pose[14] = right;
  logit[4] += 1e-4f;
  refused("a wrong logit", QCN_WRONG_ANSWER,
          [&] { qcn::self_test(fixed, {1e-5, 2e-4}, golden, signature, true); });
}

void self_test_without_poses() {
  const networks::Network cnn = tiny::network(false);
  const string answers = tiny::golden(cnn);
  const qcn::Manifest manifest = qcn::parse_manifest(tiny::manifest(cnn.weights(), answers, false));
  const qcn::Signature& signature = manifest.signature;
  const qcn::TensorFile file(networks::bytes(answers), qcn::kGoldenSchema);
  const qcn::Golden golden = qcn::read_golden(file, manifest);
  const auto backend = qcn::native_backend(qcn::program::Program(cnn.file()));
  const string said = qcn::self_test(*backend, {1e-5, 0}, golden, signature, true);
  check(contains(said, "4 of 4") && !contains(said, "pose"), said);
  const qcn::TensorFile other(networks::bytes(tiny::golden(cnn, 0.5f)), qcn::kGoldenSchema);
  refused("a wrong logit of a CNN", QCN_WRONG_ANSWER,
          [&] { qcn::self_test(*backend, {1e-5, 0}, qcn::read_golden(other, manifest), signature, true); });
  refused("golden answers without poses", QCN_BAD_BUNDLE,
          [&] { qcn::read_golden(file, qcn::parse_manifest(kManifest)); });
}

}  // namespace

int main() {
  wrong_preprocessing();
  self_tests();
  self_test_without_poses();
  return verdict();
}
