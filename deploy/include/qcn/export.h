// QCN_API: what libqcn exports. Define QCN_STATIC in a program that links the static library on Windows; QCN_BUILD is
// for the build of the library itself.
#ifndef QCN_EXPORT_H
#define QCN_EXPORT_H

#if defined(QCN_STATIC)
#define QCN_API
#elif defined(_WIN32) && defined(QCN_BUILD)
#define QCN_API __declspec(dllexport)
#elif defined(_WIN32)
#define QCN_API __declspec(dllimport)
#else
#define QCN_API __attribute__((visibility("default")))
#endif

#endif
