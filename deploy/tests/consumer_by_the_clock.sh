#!/usr/bin/env bash
# A new program from an empty folder to an answer, by the clock: libqcn is built and installed, the program is written,
# built with find_package, and asked for the class of a grey image.
#   usage: consumer_by_the_clock.sh BUNDLE [JOBS]
set -euo pipefail
bundle=$(readlink -f "${1:?usage: consumer_by_the_clock.sh BUNDLE [JOBS]}") jobs=${2:-$(nproc)}
deploy=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

begun=$(date +%s.%N)
say() { awk -v begun="$begun" -v now="$(date +%s.%N)" -v what="$*" 'BEGIN { printf "%6.1f s  %s\n", now - begun, what }'; }

cmake -S "$deploy" -B libqcn -DQCN_TESTS=OFF -DQCN_PROGRAMS=OFF -DQCN_CUDA=OFF >cmake.log
cmake --build libqcn --parallel "$jobs" >>cmake.log
cmake --install libqcn --prefix "$folder/installed" >>cmake.log
say "libqcn is built and installed"

mkdir robot
cat >robot/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(robot LANGUAGES CXX)
find_package(qcn REQUIRED)
add_executable(robot robot.cpp)
target_link_libraries(robot PRIVATE qcn::qcn)
CMAKE
cat >robot/robot.cpp <<'CPP'
#include <iostream>
#include <qcn/qcn.hpp>
int main(int, char** arguments) {
  qcn::Model model(arguments[1]);
  qcn::Session session(model);
  const qcn_model_info info = model.info();
  std::vector<unsigned char> pixels(std::size_t(info.width) * info.height * info.channels, 128);
  qcn::Answer answer = session.classify(qcn_image_default(pixels.data(), info.width, info.height, info.channels));
  std::cout << model.class_name(answer.best()) << "\n";
}
CPP
cmake -S robot -B robot/build -DCMAKE_PREFIX_PATH="$folder/installed" -DCMAKE_CXX_STANDARD=17 >>cmake.log
cmake --build robot/build >>cmake.log
say "the program is built"
answer=$(robot/build/robot "$bundle")
say "it answers: $answer"
