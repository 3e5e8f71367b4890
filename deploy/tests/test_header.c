/* em_routing.h as a C99 program sees it. */
#include "em_routing.h"

int main(void) {
  qcn_routing_shape shape = {0};
  return qcn_routing_forward(&shape, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) == QCN_ROUTING_BAD_SIZE ? 0 : 1;
}
