// consumer_cpp BUNDLE: the class of a grey image, in C++.
#include <iostream>
#include <qcn/qcn.hpp>
#include <vector>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  try {
    const qcn::Model model(arguments[1]);
    qcn::Session session(model);
    const qcn_model_info& info = model.info();
    const std::vector<unsigned char> pixels(static_cast<std::size_t>(info.image_width) *
                                            static_cast<std::size_t>(info.image_height) *
                                            static_cast<std::size_t>(info.channels));
    const qcn::Answer answer =
        session.classify(qcn_image_default(pixels.data(), info.image_width, info.image_height, info.channels));
    std::cout << answer.label << "\n";
  } catch (const qcn::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
