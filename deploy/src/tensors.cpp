// The safetensors format: eight bytes, the length of a header in JSON; the header; the tensors' bytes, without gaps.
//
//     {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"qcn": "{…}"}}
#include "tensors.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "error.h"
#include "json.h"
#include "text.h"

namespace qcn {
namespace {

constexpr std::size_t kMaxAxes = 16;

std::int64_t bytes_of_type(const std::string& type) {
  const std::pair<const char*, int> sizes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                                               {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U64", 8},  {"U32", 4},
                                               {"U16", 2}, {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, size] : sizes) {
    if (type == name) return size;
  }
  refuse_bundle("it has arrays of an unknown type, " + quoted(type));
}

struct Place {
  std::int64_t begin, end;
  std::string name;
};

// An entry of the header. The place's bounds are only known to be whole numbers and as far apart as the shape says.
std::pair<Tensor, Place> read_entry(const std::string& name, const Json& json) {
  const std::string what = "the array " + quoted(name);
  json.check_entries({"dtype", "shape", "data_offsets"}, what);
  Tensor tensor;
  tensor.type = json["dtype"].text(what);
  std::int64_t bytes = bytes_of_type(tensor.type);
  for (const Json& side : json["shape"].list(what)) {
    tensor.shape.push_back(side.integer(what, 0));
    if (__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes)) refuse_bundle(what + " is larger than any memory");
  }
  if (tensor.shape.size() > kMaxAxes) refuse_bundle(what + " has " + std::to_string(tensor.shape.size()) + " axes");
  const JsonList& offsets = json["data_offsets"].list(what);
  if (offsets.size() != 2) refuse_bundle(what + " has no begin and end");
  const std::int64_t begin = offsets[0].integer(what, 0), end = offsets[1].integer(what, begin);
  if (end - begin != bytes) {
    refuse_bundle(what + " has " + std::to_string(end - begin) + " bytes, and its shape " + shape_text(tensor.shape) +
                  " takes " + std::to_string(bytes));
  }
  return {std::move(tensor), Place{begin, end, name}};
}

// Every byte of the data belongs to one array: then none reaches out of it, and none overlap.
void check_places(std::vector<Place> places, std::int64_t bytes) {
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::int64_t reached = 0;
  for (const Place& place : places) {
    if (place.begin != reached || place.end > bytes) {
      refuse_bundle("the array " + quoted(place.name) + " lies at bytes " + std::to_string(place.begin) + " to " +
                    std::to_string(place.end) + " of " + std::to_string(bytes) + ", where " + std::to_string(reached) +
                    " was the next");
    }
    reached = place.end;
  }
  if (reached != bytes) refuse_bundle(std::to_string(bytes - reached) + " bytes at the end belong to no array");
}

}  // namespace

std::size_t Tensor::count() const {
  std::size_t elements = 1;
  for (const std::int64_t side : shape) elements *= static_cast<std::size_t>(side);
  return elements;
}

TensorFile::TensorFile(std::vector<std::byte> bytes, const std::string& schema) : bytes_(std::move(bytes)) {
  constexpr std::size_t kPrefix = 8;
  std::uint64_t header_size = 0;
  if (bytes_.size() < kPrefix)
    refuse_bundle("it is not a safetensors file: it has " + std::to_string(bytes_.size()) + " bytes");
  for (std::size_t i = kPrefix; i-- > 0;) header_size = header_size << 8 | std::to_integer<std::uint64_t>(bytes_[i]);
  if (header_size > bytes_.size() - kPrefix)
    refuse_bundle("it is not a safetensors file, or cut short: its header does not fit");
  const std::size_t data = kPrefix + static_cast<std::size_t>(header_size);
  const Json header = Json::parse({reinterpret_cast<const char*>(bytes_.data() + kPrefix), data - kPrefix});

  std::vector<Place> places;
  for (const JsonEntry& entry : header.object("the header")) {
    if (entry.name == "__metadata__") continue;
    auto [tensor, place] = read_entry(entry.name, entry.value);
    places.push_back(place);
    tensors_.emplace(entry.name, std::move(tensor));
  }
  check_places(places, static_cast<std::int64_t>(bytes_.size() - data));
  for (const Place& place : places) {
    Tensor& tensor = tensors_.at(place.name);
    tensor.data = bytes_.data() + data + place.begin;
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes_of_type(tensor.type)) != 0) {
      refuse_bundle("the array " + quoted(place.name) + " is not aligned for its type");
    }
  }

  const Json* metadata = header.find("__metadata__");
  const Json* ours = metadata ? metadata->find("qcn") : nullptr;
  if (!ours) refuse_bundle("it was not written by qcn: its metadata has no 'qcn'");
  const Json texts = Json::parse(ours->text("its metadata 'qcn'"));
  for (const JsonEntry& entry : texts.object("its metadata 'qcn'")) {
    texts_.emplace(entry.name, entry.value.text("an entry of its metadata"));
  }
  if (const std::string& found = text("schema"); found != schema) {
    refuse_bundle("it has schema " + quoted(found) + "; this version of libqcn, " + qcn_version() + ", reads '" +
                  schema + "'");
  }
}

const Tensor& TensorFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse_bundle("it has no array " + quoted(name));
  return found->second;
}

const std::byte* TensorFile::checked(const std::string& name, const char* type,
                                     const std::vector<std::int64_t>& shape) const {
  const Tensor& tensor = at(name);
  if (tensor.type != type || tensor.shape != shape) {
    refuse_bundle("the array " + quoted(name) + " must be " + type + " " + shape_text(shape) + ", not " + tensor.type +
                  " " + shape_text(tensor.shape));
  }
  return tensor.data;
}

const std::string& TensorFile::text(const std::string& name) const {
  const auto found = texts_.find(name);
  if (found == texts_.end()) refuse_bundle("its metadata has no text " + quoted(name));
  return found->second;
}

}  // namespace qcn
