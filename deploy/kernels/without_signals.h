// Starts threads of the library that get no signals: those are for the program's own threads, of which one that waits in
// a call must be interrupted.
#ifndef QCN_KERNELS_WITHOUT_SIGNALS_H
#define QCN_KERNELS_WITHOUT_SIGNALS_H

#include <pthread.h>

#include <csignal>

namespace qcn {

class WithoutSignals {  // while it lives, for this thread and those that it starts
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace qcn

#endif
