/* em_routing.h and qcn.h as a C99 program sees them, in either order. */
#include <qcn/qcn.h>

#include "em_routing.h"

int main(void) {
  qcn_routing_shape shape = {0};
  if (qcn_routing_forward(&shape, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) != QCN_ROUTING_BAD_SIZE) return 1;
  return qcn_model_default_params().size == sizeof(qcn_model_params) ? 0 : 1;
}
