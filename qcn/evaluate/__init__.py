"""How often a network is wrong: `evaluation.evaluate(model, Request(…))`, for the shell, for Python and for scripts.

evaluation    the test splits of a run or a bundle, and the files that say what was found
networks      what can be measured               rates      errors with their intervals
mistakes      the worst of them, as a picture    unknown    pictures of other things
request       what `qcn evaluate` is asked for   directions how far directions of view are off
"""
