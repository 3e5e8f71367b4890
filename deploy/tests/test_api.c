/* qcn.h as a C99 program sees it: test_api BUNDLE CNN_BUNDLE. Everything that can be misused is. */
#include <math.h>
#include <qcn/qcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
static int logged = 0;

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) {                                      \
      printf("FAILED, line %d: %s\n", __LINE__, #condition); \
      printf("  the last error is: %s\n", qcn_last_error()); \
      ++failures;                                            \
    }                                                        \
  } while (0)

static void log_line(qcn_log_level level, const char* message, void* user) {
  if (level > QCN_LOG_ERROR || !message || user != &logged) ++failures;
  ++logged;
}

static void names(void) {
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", QCN_VERSION_MAJOR, QCN_VERSION_MINOR, QCN_VERSION_PATCH);
  CHECK(strcmp(qcn_version(), version) == 0);
  CHECK(strcmp(qcn_version(), QCN_PROJECT_VERSION) == 0);
  CHECK(strcmp(qcn_status_name(QCN_OK), "QCN_OK") == 0);
  CHECK(strcmp(qcn_status_name(QCN_INTERNAL_ERROR), "QCN_INTERNAL_ERROR") == 0);
  CHECK(qcn_status_name((qcn_status)77) != NULL && qcn_status_name((qcn_status)-1) != NULL);
}

static void loading(const char* bundle) {
  qcn_model* model = (qcn_model*)&failures; /* must be left as it is */
  qcn_model_params params = qcn_model_default_params();
  CHECK(qcn_model_load(NULL, NULL, &model) == QCN_BAD_ARGUMENT && strstr(qcn_last_error(), "path"));
  CHECK(qcn_model_load(bundle, NULL, NULL) == QCN_BAD_ARGUMENT && strstr(qcn_last_error(), "model"));
  CHECK(qcn_model_load("", NULL, &model) == QCN_NO_FILE);
  CHECK(qcn_model_load("/no/such/folder", NULL, &model) == QCN_NO_FILE);
  CHECK(qcn_model_load("/", NULL, &model) == QCN_BAD_BUNDLE);

#define NOT_LOADED(field, value, status, says)                                                     \
  do {                                                                                             \
    qcn_model_params wrong = qcn_model_default_params();                                           \
    wrong.field = value;                                                                           \
    CHECK(qcn_model_load(bundle, &wrong, &model) == (status) && strstr(qcn_last_error(), (says))); \
  } while (0)
  NOT_LOADED(backend, (qcn_backend)77, QCN_BAD_ARGUMENT, "77");
  NOT_LOADED(backend, QCN_BACKEND_TENSORRT, QCN_NO_BACKEND, "no TensorRT engine"); /* with or without TensorRT here */
  NOT_LOADED(precision, "fp8", QCN_BAD_ARGUMENT, "precision");
  NOT_LOADED(precision, "fp16", QCN_NO_BACKEND, "not in fp16");
  NOT_LOADED(self_test, 3, QCN_BAD_ARGUMENT, "self_test");
  NOT_LOADED(threads, -1, QCN_BAD_ARGUMENT, "threads is -1");
  NOT_LOADED(threads, 3000, QCN_BAD_ARGUMENT, "threads is 3000");
  NOT_LOADED(threads, QCN_MAX_THREADS + 1, QCN_BAD_ARGUMENT, "from 0 to 1024");
  NOT_LOADED(device, -1, QCN_BAD_ARGUMENT, "device is -1");
  /* A key that was meant to be there, and is not, is no reason to load without one. */
  NOT_LOADED(public_key, "", QCN_BAD_ARGUMENT, "public key");
  NOT_LOADED(public_key,
             "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAO2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=\n"
             "-----END PUBLIC KEY-----\n",
             QCN_BAD_SIGNATURE, "is not signed");
  CHECK(model == (qcn_model*)&failures);
  qcn_model_free(NULL);

  params.log = log_line;
  params.log_user = &logged;
  params.self_test = 2;
  CHECK(qcn_model_load(bundle, &params, &model) == QCN_OK);
  CHECK(logged == 3); /* why native, what was loaded, what the self-test found */
  qcn_model_free(model);
}

/* A bundle whose files are in memory; what else can be wrong with them is in test_bundle.cpp. */
static void loading_from_memory(const char* bundle) {
  static const char* const names[] = {"manifest.json", "manifest.sha256", "weights.safetensors", "golden.safetensors"};
  static char bytes[4][1 << 18];
  qcn_file files[4];
  qcn_model *model = NULL, *other = NULL;
  qcn_session *session = NULL, *again = NULL;
  qcn_model_params params = qcn_model_default_params();
  unsigned char pixels[12 * 10] = {0};
  qcn_image image = qcn_image_default(pixels, 12, 10, 1);
  float logit[3], expected[3];
  int i;
  for (i = 0; i < 4; ++i) {
    char path[4096];
    FILE* file;
    snprintf(path, sizeof path, "%s/%s", bundle, names[i]);
    file = fopen(path, "rb");
    CHECK(file != NULL);
    if (!file) return;
    files[i].name = names[i];
    files[i].data = bytes[i];
    files[i].bytes = fread(bytes[i], 1, sizeof bytes[i], file);
    CHECK(files[i].bytes < sizeof bytes[i]);
    fclose(file);
  }
  CHECK(qcn_model_load_memory(NULL, 4, NULL, &model) == QCN_BAD_ARGUMENT && strstr(qcn_last_error(), "files"));
  CHECK(qcn_model_load_memory(files, 4, NULL, NULL) == QCN_BAD_ARGUMENT && strstr(qcn_last_error(), "model"));
  CHECK(qcn_model_load_memory(files, 0, NULL, &model) == QCN_BAD_BUNDLE);
  CHECK(qcn_model_load_memory(files, 2, NULL, &model) == QCN_NO_FILE && !model);
  params.threads = -1;
  CHECK(qcn_model_load_memory(files, 4, &params, &model) == QCN_BAD_ARGUMENT);
  params = qcn_model_default_params();
  params.log = log_line;
  params.log_user = &logged;
  logged = 0;
  CHECK(qcn_model_load_memory(files, 4, &params, &model) == QCN_OK && logged == 3);
  memset(bytes, 0, sizeof bytes); /* they are copied */
  CHECK(qcn_model_load(bundle, NULL, &other) == QCN_OK);
  CHECK(qcn_session_create(model, NULL, &session) == QCN_OK && qcn_session_create(other, NULL, &again) == QCN_OK);
  CHECK(qcn_classify(session, &image, 1, NULL, logit, NULL) == QCN_OK);
  CHECK(qcn_classify(again, &image, 1, NULL, expected, NULL) == QCN_OK && !memcmp(logit, expected, sizeof logit));
  qcn_session_free(session);
  qcn_session_free(again);
  qcn_model_free(model);
  qcn_model_free(other);
}

/* Structures of programs that were built with an older or a newer header. */
static void structure_sizes(const char* bundle) {
  qcn_model* model = NULL;
  struct {
    qcn_model_params known;
    size_t unknown;
  } newer;
  qcn_model_params older = qcn_model_default_params();
  struct {
    qcn_model_info known;
    size_t unknown;
  } more;
  qcn_model_info info;
  size_t odd;
  memset(&newer, 0, sizeof newer);
  newer.known = qcn_model_default_params();
  newer.known.size = sizeof newer;
  CHECK(qcn_model_load(bundle, &newer.known, &model) == QCN_OK);
  qcn_model_free(model);
  model = NULL;
  newer.unknown = 1;
  CHECK(qcn_model_load(bundle, &newer.known, &model) == QCN_BAD_ARGUMENT && strstr(qcn_last_error(), "newer"));
  older.size = offsetof(qcn_model_params, log); /* what follows is not looked at */
  older.log_user = NULL;
  older.log = (qcn_log)(void (*)(void))abort;
  CHECK(qcn_model_load(bundle, &older, &model) == QCN_OK);
  for (odd = 0; odd < 16; ++odd) {
    older.size = odd;
    CHECK(qcn_model_load(bundle, &older, &model) == QCN_BAD_ARGUMENT);
  }
  older.size = sizeof older - 1;
  CHECK(qcn_model_load(bundle, &older, &model) == QCN_BAD_ARGUMENT);
  older.size = (size_t)-8;
  CHECK(qcn_model_load(bundle, &older, &model) == QCN_BAD_ARGUMENT);

  memset(&info, 0x55, sizeof info);
  CHECK(qcn_model_describe(model, &info) == QCN_BAD_ARGUMENT);
  info.size = sizeof info;
  CHECK(qcn_model_describe(model, NULL) == QCN_BAD_ARGUMENT && qcn_model_describe(NULL, &info) == QCN_BAD_ARGUMENT);
  CHECK(qcn_model_describe(model, &info) == QCN_OK && info.size == sizeof info);
  CHECK(strcmp(info.name, "tiny") == 0 && info.classes == 3 && info.channels == 1 && info.height == 8);
  CHECK(info.backend == QCN_BACKEND_NATIVE && strncmp(info.backend_name, "native", 6) == 0);
  CHECK(strcmp(info.precision, "fp32") == 0 && info.max_batch == 0 && info.poses == 1);
  CHECK(info.image_height == 10 && info.image_width == 12 && info.temperature == 1 && !info.says_unknown);
  qcn_operation operation;
  memset(&operation, 0, sizeof operation);
  CHECK(qcn_model_operation(model, 0, &operation) == QCN_BAD_ARGUMENT); /* its size is not set */
  operation.size = sizeof operation;
  CHECK(info.operations > 0 && qcn_model_operation(model, info.operations - 1, &operation) == QCN_OK);
  CHECK(strcmp(operation.op, "route") == 0 && strcmp(operation.asked, "fp32") == 0);
  CHECK(strcmp(operation.ran, "fp32") == 0 && strstr(info.backend_name, operation.kernel) != NULL);
  CHECK(qcn_model_operation(model, info.operations, &operation) == QCN_BAD_ARGUMENT);
  CHECK(qcn_model_operation(model, -1, &operation) == QCN_BAD_ARGUMENT);
  memset(&info, 0x55, sizeof info);
  info.size = offsetof(qcn_model_info, backend_name);
  CHECK(qcn_model_describe(model, &info) == QCN_OK && info.width == 8 && info.max_batch == 0x55555555);
  memset(&more, 0x55, sizeof more);
  more.known.size = sizeof more;
  CHECK(qcn_model_describe(model, &more.known) == QCN_OK && more.unknown == 0 && more.known.classes == 3);

  CHECK(strcmp(qcn_model_class(model, 0), "cat") == 0 && strcmp(qcn_model_class(model, 2), "\xC3\xA9") == 0);
  CHECK(!qcn_model_class(model, 3) && !qcn_model_class(model, -1) && !qcn_model_class(NULL, 0));
  qcn_model_free(model);
}

static void count_layer(const qcn_layer* layer, void* user) {
  const int last = strcmp(layer->name, "classes") == 0;
  CHECK(last ? layer->logit && !layer->activation : layer->activation && !layer->logit);
  *(int*)user += layer->images > 0 && isfinite(layer->pose[0]) && isfinite(layer->statistics[0]);
}

static void seeing_layers(const char* bundle) {
  qcn_model* model = NULL;
  qcn_session* session = NULL;
  qcn_session_params params = qcn_session_default_params();
  unsigned char pixels[12 * 10] = {0};
  float logit[3], again[3];
  qcn_image image = qcn_image_default(pixels, 12, 10, 1);
  int layers = 0;
  params.layer = count_layer;
  params.layer_user = &layers;
  CHECK(qcn_model_load(bundle, NULL, &model) == QCN_OK && layers == 0);
  CHECK(qcn_session_create(model, &params, &session) == QCN_OK);
  CHECK(qcn_classify(session, &image, 1, NULL, logit, NULL) == QCN_OK && layers > 1);
  qcn_session_free(session);
  params.size = offsetof(qcn_session_params, layer); /* of an older header, which has none */
  layers = 0;
  CHECK(qcn_session_create(model, &params, &session) == QCN_OK);
  CHECK(qcn_classify(session, &image, 1, NULL, again, NULL) == QCN_OK && layers == 0);
  CHECK(!memcmp(logit, again, sizeof again));
  qcn_session_free(session);
  qcn_model_free(model);
}

static void classifying(const char* bundle) {
  qcn_model* model = NULL;
  qcn_session* session = (qcn_session*)&failures;
  qcn_session_params params = qcn_session_default_params();
  unsigned char pixels[12 * 10] = {0};
  float floats[12 * 10], input[64], logit[300], pose[900], again[300];
  qcn_answer answer = qcn_answer_default();
  qcn_image image = qcn_image_default(pixels, 12, 10, 1), images[100];
  int i;
  for (i = 0; i < 120; ++i) pixels[i] = (unsigned char)(i * 37), floats[i] = (float)pixels[i] / 255;
  CHECK(qcn_model_load(bundle, NULL, &model) == QCN_OK);
  CHECK(qcn_session_create(NULL, NULL, &session) == QCN_BAD_ARGUMENT);
  CHECK(qcn_session_create(model, NULL, NULL) == QCN_BAD_ARGUMENT);
  params.size = 3;
  CHECK(qcn_session_create(model, &params, &session) == QCN_BAD_ARGUMENT);
  CHECK(session == (qcn_session*)&failures);
  params = qcn_session_default_params();
  CHECK(qcn_session_create(model, &params, &session) == QCN_OK);
  qcn_session_free(NULL);

  logit[0] = pose[0] = input[0] = 7;
  CHECK(qcn_classify(NULL, &image, 1, &answer, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_classify(session, NULL, 1, &answer, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_classify(session, &image, 1, NULL, NULL, NULL) == QCN_BAD_ARGUMENT);
  CHECK(qcn_classify(session, &image, 0, &answer, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_classify(session, &image, -5, &answer, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_infer(NULL, input, 1, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_infer(session, NULL, 1, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_infer(session, input, 1, NULL, NULL) == QCN_BAD_ARGUMENT);
  CHECK(qcn_infer(session, input, 0, logit, pose) == QCN_BAD_ARGUMENT);
  CHECK(qcn_preprocess(NULL, &image, input) == QCN_BAD_ARGUMENT);
  CHECK(qcn_preprocess(model, NULL, input) == QCN_BAD_ARGUMENT);
  CHECK(qcn_preprocess(model, &image, NULL) == QCN_BAD_ARGUMENT);

#define REFUSED(change)                                                                \
  do {                                                                                 \
    qcn_image wrong = qcn_image_default(pixels, 12, 10, 1);                            \
    change;                                                                            \
    CHECK(qcn_classify(session, &wrong, 1, &answer, logit, pose) == QCN_BAD_ARGUMENT); \
    CHECK(qcn_preprocess(model, &wrong, input) == QCN_BAD_ARGUMENT);                   \
  } while (0)
  REFUSED(wrong.size = 0);
  REFUSED(wrong.size = 7);
  REFUSED(wrong.size = (size_t)-8);
  REFUSED(wrong.data = NULL);
  REFUSED(wrong.width = 0);
  REFUSED(wrong.width = -12);
  REFUSED(wrong.height = 0);
  REFUSED(wrong.height = 20000);
  REFUSED(wrong.channels = 2); /* a stereo pair */
  CHECK(strstr(qcn_last_error(), "has 2 channels, and the network takes 1"));
  REFUSED(wrong.pixel = QCN_FLOAT32; wrong.height = 9);
  CHECK(strstr(qcn_last_error(),
               "12\xC3\x97"
               "10 with 1 channels, not 12\xC3\x97"
               "9 with 1"));
  REFUSED(wrong.pixel = QCN_FLOAT32); /* with the strides of bytes */
  CHECK(strstr(qcn_last_error(), "a stride of 1 is less than a float") && strstr(qcn_last_error(), "sizeof(float)"));
  REFUSED(wrong.channels = 0);
  REFUSED(wrong.pixel = (qcn_pixel)9);
  REFUSED(wrong.on_device = 1);
  REFUSED(wrong.row_stride = PTRDIFF_MAX);
  REFUSED(wrong.column_stride = PTRDIFF_MIN);
  CHECK(strstr(qcn_last_error(), "(column), 12 (row) and 1 (channel) bytes reach further")); /* whichever is wrong */
  CHECK(logit[0] == 7 && pose[0] == 7 && input[0] == 7 && answer.index == -1 && !answer.label);
  images[0] = images[1] = image;
  images[1].size -= 8;
  CHECK(qcn_classify(session, images, 2, NULL, logit, pose) == QCN_BAD_ARGUMENT && logit[0] == 7);

  CHECK(qcn_classify(session, &image, 1, NULL, logit, pose) == QCN_OK);
  CHECK(isfinite(logit[0]) && isfinite(pose[8]));
  CHECK(qcn_classify(session, &image, 1, NULL, again, NULL) == QCN_OK && !memcmp(logit, again, 12));
  CHECK(qcn_preprocess(model, &image, input) == QCN_OK && qcn_infer(session, input, 1, again, NULL) == QCN_OK);
  CHECK(!memcmp(logit, again, 12));
  for (i = 0; i < 100; ++i) images[i] = image; /* more than go at once */
  CHECK(qcn_classify(session, images, 100, NULL, logit, pose) == QCN_OK);
  for (i = 0; i < 100; ++i) CHECK(fabsf(logit[3 * i + 2] - again[2]) < 1e-6f);
  image.size = offsetof(qcn_image, reverse_channels); /* of an older header */
  CHECK(qcn_classify(session, &image, 1, NULL, again, NULL) == QCN_OK && fabsf(logit[1] - again[1]) < 1e-6f);

  image = qcn_image_planar(floats, 12, 10, 1);
  image.pixel = QCN_FLOAT32;
  image.column_stride *= 4, image.row_stride *= 4, image.channel_stride *= 4;
  CHECK(qcn_classify(session, &image, 1, NULL, again, NULL) == QCN_OK && fabsf(logit[1] - again[1]) < 1e-6f);
  floats[5 * 12 + 5] = NAN;
  CHECK(qcn_classify(session, &image, 1, NULL, again, pose) == QCN_OK && isnan(again[0]));
  CHECK(qcn_classify(session, &image, 1, &answer, again, NULL) == QCN_WRONG_ANSWER && answer.index == -1 &&
        strstr(qcn_last_error(), "tiny returned NaN or an infinite number, not an answer"));
  for (i = 0; i < 120; ++i) floats[i] = i % 2 ? INFINITY : -INFINITY;
  CHECK(qcn_classify(session, &image, 1, NULL, again, pose) == QCN_OK);
  for (i = 0; i < 120; ++i) floats[i] = 3e38f;
  CHECK(qcn_classify(session, &image, 1, NULL, again, pose) == QCN_OK);

  qcn_model_free(model); /* the session keeps it */
  image = qcn_image_default(pixels, 12, 10, 1);
  CHECK(qcn_classify(session, &image, 1, NULL, again, NULL) == QCN_OK && fabsf(logit[1] - again[1]) < 1e-6f);
  qcn_session_free(session);
}

static int same(const qcn_answer a[2], const qcn_answer b[2]) {
  int i, all = 1;
  for (i = 0; i < 2; ++i) {
    all &= a[i].size == b[i].size && a[i].index == b[i].index && a[i].label == b[i].label;
    all &= a[i].probability == b[i].probability && a[i].known == b[i].known;
  }
  return all;
}

/* From logits to answers: by qcn_classify and by qcn_decide alike. tests/answers.json has the numbers. */
static void answering(const char* bundle) {
  qcn_model* model = NULL;
  qcn_session* session = NULL;
  unsigned char pixels[2][12 * 10] = {{0}};
  float logit[6] = {7, 7, 7, 7, 7, 7}, odd[6] = {1, 3, 3, 5000, -INFINITY, 2};
  double probability[6] = {7, 7, 7, 7, 7, 7}, sum;
  qcn_answer answers[2] = {qcn_answer_default(), qcn_answer_default()}, again[2];
  struct {
    qcn_answer known;
    size_t unknown;
  } newer[2];
  qcn_image images[2] = {qcn_image_default(pixels[0], 12, 10, 1), qcn_image_default(pixels[1], 12, 10, 1)};
  int i;
  memset(pixels[1], 200, 60);
  CHECK(qcn_model_load(bundle, NULL, &model) == QCN_OK && qcn_session_create(model, NULL, &session) == QCN_OK);
  answers[1].size = 0;
  CHECK(qcn_classify(session, images, 2, answers, logit, NULL) == QCN_BAD_ARGUMENT);
  CHECK(strstr(qcn_last_error(), "answer 1") && strstr(qcn_last_error(), "qcn_answer_default"));
  CHECK(logit[0] == 7 && answers[0].index == -1);
  answers[0].size = 8;
  CHECK(qcn_classify(session, images, 1, answers, logit, NULL) == QCN_BAD_ARGUMENT);
  answers[0] = answers[1] = again[0] = again[1] = qcn_answer_default();
  CHECK(qcn_classify(session, images, 2, answers, logit, NULL) == QCN_OK);
  CHECK(qcn_classify(session, images, 2, again, NULL, NULL) == QCN_OK && same(answers, again));
  CHECK(qcn_decide(model, logit, NULL, 2, again) == QCN_OK && same(answers, again));
  CHECK(qcn_probabilities(model, logit, 2, probability) == QCN_OK);
  for (i = 0; i < 2; ++i) {
    const double* const of = probability + 3 * i;
    CHECK(answers[i].size == sizeof *answers && answers[i].index >= 0 && answers[i].index < 3);
    CHECK(answers[i].label == qcn_model_class(model, answers[i].index) && answers[i].known == 1);
    CHECK(!answers[i].has_direction && isnan(answers[i].azimuth) && isnan(answers[i].spread));
    CHECK(fabs(of[answers[i].index] - answers[i].probability) < 1e-15);
    sum = of[0] + of[1] + of[2];
    CHECK(fabs(sum - 1) < 1e-15 && answers[i].probability >= sum / 3);
  }
  memset(newer, 0x55, sizeof newer);
  newer[0].known.size = newer[1].known.size = sizeof *newer;
  CHECK(qcn_decide(model, logit, NULL, 2, &newer[0].known) == QCN_OK && newer[1].unknown == 0);
  CHECK(newer[1].known.label == answers[1].label && newer[1].known.size == sizeof *newer);
  /* A program of a header without directions gets its answer, and nothing behind it. */
  again[0] = qcn_answer_default();
  again[0].size = offsetof(qcn_answer, azimuth);
  again[0].azimuth = 7;
  CHECK(qcn_decide(model, logit, NULL, 1, again) == QCN_OK && again[0].index == answers[0].index);
  CHECK(again[0].azimuth == 7 && again[0].size == offsetof(qcn_answer, azimuth));
  /* The first of equal ones; and nothing is written where one of two is no answer. */
  CHECK(qcn_decide(model, odd, NULL, 1, answers) == QCN_OK && answers[0].index == 1);
  answers[0] = qcn_answer_default();
  probability[0] = 7;
  CHECK(qcn_decide(model, odd, NULL, 2, answers) == QCN_WRONG_ANSWER && answers[0].index == -1);
  CHECK(qcn_probabilities(model, odd, 2, probability) == QCN_WRONG_ANSWER && probability[0] == 7);
  CHECK(qcn_decide(NULL, logit, NULL, 1, answers) == QCN_BAD_ARGUMENT);
  CHECK(qcn_decide(model, NULL, NULL, 1, answers) == QCN_BAD_ARGUMENT);
  CHECK(qcn_decide(model, logit, NULL, 1, NULL) == QCN_BAD_ARGUMENT);
  CHECK(qcn_decide(model, logit, NULL, 0, answers) == QCN_BAD_ARGUMENT);
  CHECK(qcn_probabilities(NULL, logit, 1, probability) == QCN_BAD_ARGUMENT);
  CHECK(qcn_probabilities(model, NULL, 1, probability) == QCN_BAD_ARGUMENT);
  CHECK(qcn_probabilities(model, logit, 1, NULL) == QCN_BAD_ARGUMENT);
  CHECK(qcn_probabilities(model, logit, -1, probability) == QCN_BAD_ARGUMENT);
  qcn_session_free(session);
  qcn_model_free(model);
}

/* Pictures of any size, in grey, in colour or with transparency: the answers are those to the images they become. */
static void any_picture(const char* bundle) {
  qcn_model* model = NULL;
  static unsigned char large[480 * 640 * 4], colour[480 * 640 * 3], grey[10 * 12];
  float expected[64], found[64];
  qcn_image image = qcn_image_default(grey, 12, 10, 1);
  int i;
  CHECK(qcn_model_load(bundle, NULL, &model) == QCN_OK);
  memset(grey, 76, sizeof grey); /* of red */
  for (i = 0; i < 480 * 640; ++i) large[4 * i] = colour[3 * i] = 255, large[4 * i + 3] = 255;
  CHECK(qcn_preprocess(model, &image, expected) == QCN_OK);
  image = qcn_image_default(colour, 640, 480, 3);
  CHECK(qcn_preprocess(model, &image, found) == QCN_OK && !memcmp(found, expected, sizeof found));
  image = qcn_image_default(large, 640, 480, 4);
  CHECK(qcn_preprocess(model, &image, found) == QCN_OK && !memcmp(found, expected, sizeof found));
  image = qcn_image_default(colour, 1, 1, 3);
  CHECK(qcn_preprocess(model, &image, found) == QCN_OK && !memcmp(found, expected, sizeof found));
  image.reverse_channels = 1; /* blue */
  memset(grey, 29, sizeof grey);
  CHECK(qcn_preprocess(model, &image, found) == QCN_OK && memcmp(found, expected, sizeof found));
  image = qcn_image_default(grey, 3, 40, 1);
  CHECK(qcn_preprocess(model, &image, expected) == QCN_OK && !memcmp(found, expected, sizeof found));
  qcn_model_free(model);
}

/* A network without poses: it says so, and is not asked for them. */
static void without_poses(const char* bundle) {
  qcn_model* model = NULL;
  qcn_session* session = NULL;
  qcn_model_info info;
  unsigned char pixels[12 * 10] = {0};
  float input[64] = {0}, logit[3], pose[9];
  qcn_answer answer = qcn_answer_default();
  qcn_image image = qcn_image_default(pixels, 12, 10, 1);
  CHECK(qcn_model_load(bundle, NULL, &model) == QCN_OK);
  info.size = sizeof info;
  CHECK(qcn_model_describe(model, &info) == QCN_OK && info.poses == 0 && info.classes == 3);
  CHECK(qcn_session_create(model, NULL, &session) == QCN_OK);
  CHECK(qcn_classify(session, &image, 1, NULL, logit, pose) == QCN_BAD_ARGUMENT &&
        strstr(qcn_last_error(), "no poses"));
  CHECK(qcn_infer(session, input, 1, logit, pose) == QCN_BAD_ARGUMENT && strstr(qcn_last_error(), "no poses"));
  CHECK(qcn_infer(session, input, 1, logit, NULL) == QCN_OK);
  CHECK(qcn_classify(session, &image, 1, NULL, logit, NULL) == QCN_OK);
  CHECK(qcn_classify(session, &image, 1, &answer, NULL, NULL) == QCN_OK && answer.probability > 1. / 3);
  qcn_session_free(session);
  qcn_model_free(model);
}

int main(int count, char** arguments) {
  CHECK(qcn_last_error()[0] == '\0');
  if (count != 3) return 2;
  names();
  loading(arguments[1]);
  loading_from_memory(arguments[1]);
  structure_sizes(arguments[1]);
  classifying(arguments[1]);
  answering(arguments[1]);
  seeing_layers(arguments[1]);
  any_picture(arguments[1]);
  without_poses(arguments[2]);
  return failures ? 1 : 0;
}
