// libqcn: a Quaternion Capsule Network inside a C or C++ program.
//
//     #include <qcn/qcn.h>
//     #include <stdio.h>
//
//     // Prints what is on a picture of any size, given as packed bytes: grey, RGBRGB… or RGBARGBA….
//     // Returns the index of the class, or -1 after printing what went wrong.
//     int classify(const char* bundle, const unsigned char* pixels, int width, int height, int channels) {
//       qcn_model* model = NULL;
//       qcn_session* session = NULL;
//       qcn_answer answer = qcn_answer_default();
//       qcn_image image = qcn_image_default(pixels, width, height, channels);
//       if (qcn_model_load(bundle, NULL, &model) || qcn_session_create(model, NULL, &session) ||
//           qcn_classify(session, &image, 1, &answer, NULL, NULL)) {
//         fprintf(stderr, "%s\n", qcn_last_error());
//       } else if (answer.known) {
//         printf("%s %.1f %%\n", answer.label, 100 * answer.probability);
//       } else {
//         printf("unknown (most like %s, %.1f %%)\n", answer.label, 100 * answer.probability);
//       }
//       qcn_session_free(session);
//       qcn_model_free(model);
//       return answer.index;
//     }
//
// A program that classifies many images keeps the model and the session. In C++, qcn.hpp does the same with less code.
//
// Threads: any number of threads may use a model at once. A session is for one thread at a time: make one session per
// thread, all from one model. A model lives until it and all its sessions are freed, in any order. The first call of a
// session with a batch of a new size allocates memory; later calls do not.
//
// Errors: every function that can fail returns a qcn_status. Results go through pointers, which are left as they were
// when it fails. qcn_last_error says what was wrong, what was found, and what fixes it. Its text belongs to the calling
// thread and holds until that thread's next failing call. No input aborts the program.
//
// Structures that may grow begin with their size: take them from the function that fills in defaults. Those functions
// are in this header, so that a program and a library of different versions agree on how large a structure is.
#ifndef QCN_QCN_H
#define QCN_QCN_H

#include <math.h>
#include <qcn/export.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// The version of everything: CMake and the Python package read it here.
#define QCN_VERSION_MAJOR 0
#define QCN_VERSION_MINOR 2
#define QCN_VERSION_PATCH 0

QCN_API const char* qcn_version(void);  // of the library that is loaded, as in "1.2.3"

typedef enum {
  QCN_OK = 0,
  QCN_BAD_ARGUMENT,  // NULL, a size that does not fit, an unknown value
  QCN_NO_FILE,       // a file or folder does not exist or cannot be read
  QCN_BAD_BUNDLE,    // not a bundle, altered, or made by a newer version
  QCN_BAD_ENGINE,    // an engine for another GPU or TensorRT version
  QCN_WRONG_ANSWER,  // the backend disagrees with the bundle's golden answers (the self-test), or returned NaN
  QCN_NO_BACKEND,    // the backend asked for is not in this library or not on this machine
  QCN_NO_MEMORY,
  QCN_DEVICE_ERROR,   // the GPU or its driver
  QCN_BAD_SIGNATURE,  // the bundle is not signed, or not by the owner of qcn_model_params.public_key
  QCN_INTERNAL_ERROR
} qcn_status;

QCN_API const char* qcn_status_name(qcn_status status);  // "QCN_BAD_BUNDLE"
QCN_API const char* qcn_last_error(void);                // never NULL

// ---- models ---------------------------------------------------------------------------------------------------------

typedef struct qcn_model qcn_model;
typedef struct qcn_session qcn_session;

typedef enum {
  QCN_BACKEND_AUTO = 0,  // TensorRT where the bundle has an engine for this machine, else native
  QCN_BACKEND_NATIVE,    // this library's own kernels, on the CPU
  QCN_BACKEND_TENSORRT
} qcn_backend;

typedef enum { QCN_LOG_INFO = 0, QCN_LOG_WARNING, QCN_LOG_ERROR } qcn_log_level;

// Called from the thread that calls the library. `message` is valid during the call only.
typedef void (*qcn_log)(qcn_log_level level, const char* message, void* user);

#define QCN_MAX_THREADS 1024  // more are refused

// What a model meets in the field, for `qcn report field` (docs/field.md). A folder gets counts of the answers that
// qcn_classify gives (unknown ones, by class, by probability, by time), and the last pictures with uncertain answers.
// A thread of the library writes it; an answer never waits for that. Files can be read by this user only.
typedef struct {
  size_t size;         // of this structure
  const char* folder;  // made if its parent exists. Several models and programs may share it
  int pictures;        // how many uncertain pictures are kept, the last ones. Default 0: none
  double below;        // an answer is uncertain if it is unknown, or less probable than this. Default 0.8
  double gap;          // seconds between two pictures that are kept, at least. Default 1
  int mib;             // all files together take at most so many MiB: the oldest are deleted. Default 64
  int period;          // seconds that are counted together; the last 336 periods are kept. Default 3600
} qcn_field_params;

static inline qcn_field_params qcn_field_default_params(const char* folder) {
  qcn_field_params params;
  params.size = sizeof params;
  params.folder = folder;
  params.pictures = 0;
  params.below = 0.8;
  params.gap = 1;
  params.mib = 64;
  params.period = 3600;
  return params;
}

typedef struct {
  size_t size;            // of this structure
  qcn_backend backend;    // which one was chosen, and why, is logged
  const char* precision;  // of an engine: "fp32", "fp16", "bf16" or "int8"; NULL: the fastest one in the bundle.
                          // The native backend has one, that of the bundle's weights, and refuses others
  int self_test;          // how many golden images to check at loading. 0: none, 1: three (the default), 2: all
  int threads;            // of the native backend, for all models together; at most QCN_MAX_THREADS.
                          // 0: leave as is; at the start one per core
  int device;             // CUDA device; default 0
  qcn_log log;            // NULL: no messages. May be called as long as the model or one of its sessions lives
  void* log_user;
  const char* public_key;  // NULL, or a PEM text, "-----BEGIN PUBLIC KEY-----…": a bundle is refused unless its owner
                           // signed it (qcn sign). Then nothing of the bundle is believed before it was checked
  const qcn_field_params* field;  // NULL: nothing is recorded (the default)
} qcn_model_params;

static inline qcn_model_params qcn_model_default_params(void) {
  qcn_model_params params;
  params.size = sizeof params;
  params.backend = QCN_BACKEND_AUTO;
  params.precision = NULL;
  params.self_test = 1;
  params.threads = 0;
  params.device = 0;
  params.log = NULL;
  params.log_user = NULL;
  params.public_key = NULL;
  params.field = NULL;
  return params;
}

// Loads the bundle in the folder `path`: every file it uses is checked against its hash, and the manifest that has the
// hashes against its own. Hashes find damage; against a person who can write to the bundle only public_key helps.
// params may be NULL.
//
// The self-test pre-processes the golden images of the bundle, which must give what the network saw in training to the
// last bit, compares the names of the classes, and runs the network, whose answers must be the golden ones. It finds a
// wrong build of the library, a machine that computes wrongly, the engine of another network, or a manifest whose
// pre-processing, classes or tolerances were altered. How far answers may be off is computed from the golden file,
// which has the network's answers in float64 and in float32. A wrong network is wrong on every image, so it runs on
// three (two photographs and an edge case), which takes milliseconds. self_test = 2 runs all of them, for example once
// after installation. The log says what was found and how long it took.
QCN_API qcn_status qcn_model_load(const char* path, const qcn_model_params* params, qcn_model** model);

// A file of a bundle in memory.
typedef struct {
  const char* name;  // as in the bundle's folder: "manifest.json", "engines/fp16.engine"
  const void* data;
  size_t bytes;
} qcn_file;

// As qcn_model_load, with the same checks, of a bundle whose files are in memory: for programs that have it as a
// resource, in an archive or over a network. The native backend needs manifest.json, manifest.sha256,
// weights.safetensors and, unless self_test is 0, golden.safetensors; public_key needs manifest.sig; TensorRT needs an
// engine. Files that are not needed are ignored. The files are copied: they need only live until this returns.
QCN_API qcn_status qcn_model_load_memory(const qcn_file* files, size_t count, const qcn_model_params* params,
                                         qcn_model** model);
QCN_API void qcn_model_free(qcn_model* model);  // NULL is allowed

// What a model is. The texts belong to the model.
typedef struct {
  size_t size;                  // of this structure: set it before the call
  const char* name;             // of the bundle
  int classes;                  // number of classes
  int channels, height, width;  // of the network's input, after pre-processing
  qcn_backend backend;
  const char* backend_name;       // "native, neon, 2 threads" or "TensorRT 8.6.0 on NVIDIA H200"
  const char* precision;          // "fp32", …
  int max_batch;                  // images per run of the backend, larger batches are split; 0: any number
  int poses;                      // whether its answers have poses: 0 for a CNN
  int image_height, image_width;  // of the images of its data set, which pictures of any size are brought to
  int operations;                 // that qcn_model_operation tells of; 0: this backend does not say (TensorRT)
  double temperature;             // of its probabilities, see qcn_probabilities; 1 where it was not fitted
  int says_unknown;               // 1: an answer can be unknown; 0: this bundle cannot tell, and knows everything
  int says_direction;             // 1: an answer can have a direction; 0: this bundle cannot tell
} qcn_model_info;

QCN_API qcn_status qcn_model_describe(const qcn_model* model, qcn_model_info* info);

// What the network asks of an operation, and what this machine runs: a receipt. They differ where the CPU has no
// arithmetic of float16, and a wider one takes its place. The texts belong to the model.
typedef struct {
  size_t size;         // of this structure: set it before the call
  const char* name;    // "capsules1"
  const char* op;      // "convolution", "route", …
  const char* asked;   // the precision in the bundle: "fp32", "fp16" or "int8"
  const char* ran;     // the precision that it is computed in
  const char* kernel;  // by which kernels: "avx512fp16", "neondot", …, or "plain loops"
} qcn_operation;

QCN_API qcn_status qcn_model_operation(const qcn_model* model, int index, qcn_operation* operation);

QCN_API const char* qcn_model_class(const qcn_model* model, int index);  // NULL if out of range

// ---- sessions -------------------------------------------------------------------------------------------------------

// The output of one capsule layer, to see where an answer comes from. The arrays are valid during the call only.
typedef struct {
  size_t size;  // of this structure
  const char* name;
  int images;  // a large batch is shown in parts, in order
  int parents, height, width;
  int iterations;           // of its routing
  const float* pose;        // [images, parents, 3, height, width]
  const float* activation;  // [images, parents, height, width]; NULL for the layer of the classes,
  const float* logit;       // which has logits in their place; NULL for all other layers
  const float* statistics;  // [iterations, 7, parents, images, height, width]: mass, three means, three variances
} qcn_layer;

// Called from the thread that calls the library, once per layer, in the order of the network.
typedef void (*qcn_layer_seen)(const qcn_layer* layer, void* user);

typedef struct {
  size_t size;           // of this structure
  void* stream;          // a cudaStream_t for the work on a GPU; NULL: the session makes its own
  qcn_layer_seen layer;  // called for every capsule layer, or NULL. Only the native backend has it; others refuse
  void* layer_user;
} qcn_session_params;

static inline qcn_session_params qcn_session_default_params(void) {
  qcn_session_params params;
  params.size = sizeof params;
  params.stream = NULL;
  params.layer = NULL;
  params.layer_user = NULL;
  return params;
}

QCN_API qcn_status qcn_session_create(const qcn_model* model, const qcn_session_params* params, qcn_session** session);
QCN_API void qcn_session_free(qcn_session* session);  // NULL is allowed

// ---- images ---------------------------------------------------------------------------------------------------------

typedef enum { QCN_UINT8 = 0, QCN_FLOAT32 = 1 } qcn_pixel;  // 0 to 255, or 0.0 to 1.0

// A picture in memory. Strides are in bytes, for floats too, and may be negative.
//
// Bytes are taken in any size up to 16384 × 16384, and brought to image_width × image_height as the bundle says:
// cropped, letterboxed or stretched, by whole-number arithmetic that docs/bundle.md defines to the last bit. Grey (1
// channel), colour (3) and colour with transparency (4, laid on white) become what the network takes, 1 or 3. A network
// of two channels takes the two views of a stereo pair: a picture of two channels, and nothing else. Floats are taken
// in the size and with the channels of the network's own images alone.
typedef struct {
  size_t size;       // of this structure, the same for all images of a call
  const void* data;  // the first channel of the upper left pixel
  int width, height, channels;
  qcn_pixel pixel;
  ptrdiff_t column_stride, row_stride, channel_stride;  // from one pixel to the next
  int reverse_channels;                                 // 1: the last colour comes first, as in BGR and BGRA
  int on_device;                                        // 1: data is CUDA memory, see qcn_classify
} qcn_image;

// Packed uint8 pixels with the channels of a pixel next to each other (HWC, as cameras and decoders give them).
static inline qcn_image qcn_image_default(const void* data, int width, int height, int channels) {
  qcn_image image;
  image.size = sizeof image;
  image.data = data;
  image.width = width;
  image.height = height;
  image.channels = channels;
  image.pixel = QCN_UINT8;
  image.column_stride = channels;
  image.row_stride = (ptrdiff_t)channels * width;
  image.channel_stride = 1;
  image.reverse_channels = 0;
  image.on_device = 0;
  return image;
}
// Packed uint8 pixels, one channel after the other (CHW).
static inline qcn_image qcn_image_planar(const void* data, int width, int height, int channels) {
  qcn_image image = qcn_image_default(data, width, height, channels);
  image.column_stride = 1;
  image.row_stride = width;
  image.channel_stride = (ptrdiff_t)width * height;
  return image;
}

// ---- answers --------------------------------------------------------------------------------------------------------

// What a network says of an image.
typedef struct {
  size_t size;         // of this structure, the same for all answers of a call
  int index;           // of the class; the first of those with the largest logit
  const char* label;   // its name, which belongs to the model
  double probability;  // how likely it is right, from 0 to 1
  int known;           // 0: the image is like nothing that the network was trained on
  // From where the object is seen, in degrees (docs/bundle.md#directions-of-view). NaN if has_direction is 0: the
  // bundle cannot say, the class is round, or the answer unknown. The elevation is NaN too if only azimuths are known.
  int has_direction;
  double azimuth;    // from the object's front to its left, from 0 to 360; of a class with n-fold symmetry to 360/n
  double elevation;  // from -90 to 90
  double spread;     // the truth lies within this angle 90 times out of 100
} qcn_answer;

static inline qcn_answer qcn_answer_default(void) {
  qcn_answer answer;
  answer.size = sizeof answer;
  answer.index = -1;
  answer.label = NULL;
  answer.probability = 0;
  answer.known = 0;
  answer.has_direction = 0;
  answer.azimuth = answer.elevation = answer.spread = NAN;
  return answer;
}

// Classifies `count` images, which may differ in size. Each of the last three may be NULL, but not all:
//   answers  [count]: take each from qcn_answer_default. A logit that is not finite is no answer: QCN_WRONG_ANSWER
//   logit    [count, classes], of any size: what the answers are computed from
//   pose     [count, classes, 3], the imaginary parts of pure quaternions; NULL for a network without poses
//
// The TensorRT backend pre-processes images on the GPU: bytes travel there as bytes. It also takes images in the memory
// of its GPU (or in managed memory), mixed with others in one call. Whatever writes such an image must be finished, or
// be queued on the stream that the session was given. The answers are there when the call returns.
QCN_API qcn_status qcn_classify(qcn_session* session, const qcn_image* images, int count, qcn_answer* answers,
                                float* logit, float* pose);

// The two halves of qcn_classify, and what makes answers of logits and poses. input is [count, channels, height, width]
// of qcn_model_info, in host memory. qcn_infer takes NULL for logit or pose, but not for both; without poses, the
// answers of qcn_decide have no direction.
QCN_API qcn_status qcn_preprocess(const qcn_model* model, const qcn_image* image, float* input);
QCN_API qcn_status qcn_infer(qcn_session* session, const float* input, int count, float* logit, float* pose);
QCN_API qcn_status qcn_decide(const qcn_model* model, const float* logit, const float* pose, int count,
                              qcn_answer* answers);

// probability is [count, classes]: softmax(logit / temperature), in double precision; those of an image add up to 1.
QCN_API qcn_status qcn_probabilities(const qcn_model* model, const float* logit, int count, double* probability);

#ifdef __cplusplus
}
#endif

#endif
