// The files that libqcn finds in a page: what was added, by its path, as in "bundle/manifest.json".
#ifndef QCN_WEB_FILES_H
#define QCN_WEB_FILES_H

#include <string>

namespace qcn::web {

void add_file(const std::string& path, std::string bytes);
void forget_files();

}  // namespace qcn::web

#endif
