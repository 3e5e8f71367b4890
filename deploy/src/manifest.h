// What a bundle's manifest.json says, as far as a program that runs the network needs it. docs/bundle.md describes it,
// export/ writes it. tests/manifests/ has manifests that this reader and Python's must take, and others that both must
// refuse.
#ifndef QCN_SRC_MANIFEST_H
#define QCN_SRC_MANIFEST_H

#include <optional>
#include <string>
#include <vector>

#include "artefact.h"
#include "error.h"
#include "fit.h"
#include "signature.h"

namespace qcn {

class Json;

// Pictures of any size become images as the data set stores them (qcn/data/fit.py). Then: resize, centre crop,
// standardise, in this order, on pixels scaled to [0, 1] (qcn/data/preprocess.py).
struct Preprocessing {
  Stored stored;
  std::optional<int> resize, crop;  // sides in pixels
  bool by_image = false;            // standardise each channel of each image by its own mean and deviation,
  std::vector<double> mean, std;    // else by these, one pair per channel

  // Whether they say the same, of whatever images.
  bool operator==(const Preprocessing& other) const {
    return stored.fit == other.stored.fit && resize == other.resize && crop == other.crop &&
           by_image == other.by_image && mean == other.mean && std == other.std;
  }
};

// What says whether the network knows an image: a score of its logits (answer.cpp), and the least that is known.
enum class Score { kProbability, kLogit, kEnergy };

struct Known {
  Score score = Score::kProbability;
  double threshold = 0;
};

// What makes directions of view of poses (answer.cpp).
struct Directions {
  std::vector<int> symmetry;    // of each class: kRound, 1 for none, or n-fold
  bool elevation = true;        // false: azimuths only
  std::vector<double> lengths;  // rising limits between bins of pose length
  std::vector<double> spreads;  // of each bin, in degrees: one more than there are limits
};
constexpr int kRound = 0;

struct Manifest {
  std::string name;
  std::string digest;         // the sha256 of the text that it was read from
  std::string source_sha256;  // of the weights file of the run that it was exported from
  std::vector<std::string> classes;
  Preprocessing preprocessing;
  double temperature = 1;               // of probabilities: answer.h
  std::optional<Known> known;           // nothing: it knows everything
  std::optional<Directions> direction;  // nothing: the poses say none
  Signature signature;
  std::vector<Artefact> files;
};

// The bundle was made by a newer version of qcn, and is whole for that.
class NewerBundle : public Error {
 public:
  explicit NewerBundle(const std::string& message) : Error(QCN_BAD_BUNDLE, message) {}
};

// Both throw Error(QCN_BAD_BUNDLE) with what is wrong.
Preprocessing parse_preprocessing(const Json& json);
Manifest parse_manifest(const std::string& text);

}  // namespace qcn

#endif
