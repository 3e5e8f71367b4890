"""The report of `qcn verify-parity`: `files.write` writes it, the others compute what is on it.

files       report.json, junit.xml and report.html, from the record of verify-parity
summary     the verdict in words and the tables' cells
charts      where things lie in the charts; heat: in the map of layers and iterations
pictures    images as PNG inside the page
junit       the same for CI
"""
