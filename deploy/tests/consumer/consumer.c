/* consumer_c BUNDLE: the class of a grey image, in C. */
#include <qcn/qcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char** arguments) {
  qcn_model* model = NULL;
  qcn_session* session = NULL;
  qcn_model_info info;
  info.size = sizeof info;
  if (count != 2) return 2;
  if (qcn_model_load(arguments[1], NULL, &model) || qcn_model_describe(model, &info) ||
      qcn_session_create(model, NULL, &session)) {
    fprintf(stderr, "%s\n", qcn_last_error());
    return 1;
  }
  unsigned char* pixels = calloc((size_t)info.image_width * (size_t)info.image_height, (size_t)info.channels);
  qcn_answer answer = qcn_answer_default();
  qcn_image image = qcn_image_default(pixels, info.image_width, info.image_height, info.channels);
  if (!pixels || qcn_classify(session, &image, 1, &answer, NULL, NULL)) {
    fprintf(stderr, "%s\n", qcn_last_error());
    return 1;
  }
  printf("%s\n", answer.label);
  free(pixels);
  qcn_session_free(session);
  qcn_model_free(model);
  return 0;
}
