// qcn.h and qcn.hpp in a C++17 program that includes nothing else.
#include <qcn/qcn.hpp>
// And twice, in any order.
#include <qcn/qcn.h>

#include <qcn/qcn.hpp>

int main() { return qcn_version() && std::is_nothrow_move_constructible_v<qcn::Session> ? 0 : 1; }
