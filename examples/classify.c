/* The smallest program around libqcn: prints what is on one picture, whose packed bytes come from standard input.
 *
 *     ./classify BUNDLE WIDTH HEIGHT CHANNELS < pixels
 */
#include <qcn/qcn.h>
#include <stdio.h>
#include <stdlib.h>

static int classify(const char* bundle, const unsigned char* pixels, int width, int height, int channels) {
  qcn_model* model = NULL;
  qcn_session* session = NULL;
  qcn_answer answer = qcn_answer_default();
  qcn_image image = qcn_image_default(pixels, width, height, channels);
  if (qcn_model_load(bundle, NULL, &model) || qcn_session_create(model, NULL, &session) ||
      qcn_classify(session, &image, 1, &answer, NULL, NULL)) {
    fprintf(stderr, "%s\n", qcn_last_error());
  } else if (answer.known) {
    printf("%s %.1f %%\n", answer.label, 100 * answer.probability);
  } else {
    printf("unknown (most like %s, %.1f %%)\n", answer.label, 100 * answer.probability);
  }
  qcn_session_free(session);
  qcn_model_free(model);
  return answer.index;
}

int main(int argc, char** argv) {
  const int width = argc == 5 ? atoi(argv[2]) : 0, height = argc == 5 ? atoi(argv[3]) : 0;
  const int channels = argc == 5 ? atoi(argv[4]) : 0;
  unsigned char* pixels;
  size_t size;
  int best = -1;
  if (width < 1 || height < 1 || channels < 1 || width > 16384 || height > 16384 || channels > 16) {
    fprintf(stderr, "usage: %s BUNDLE WIDTH HEIGHT CHANNELS < pixels\n", argv[0]);
    return 2;
  }
  size = (size_t)width * (size_t)height * (size_t)channels;
  pixels = malloc(size);
  if (pixels && fread(pixels, 1, size, stdin) == size) {
    best = classify(argv[1], pixels, width, height, channels);
  } else {
    fprintf(stderr, "standard input has fewer than %lu bytes\n", (unsigned long)size);
  }
  free(pixels);
  return best < 0;
}
