"""Lower precision for a trained network, chosen by what it costs in accuracy and what it saves in time.

request       what is asked for
images        which images ranges and accuracy are measured on, and what is wrong with them
observers     the ranges and histograms of every value of a program
ranges        from a histogram to a scale, by one of four methods
record        calibration.json: the scales, bound to the weights, the pre-processing and the images
digits        which numbers of routing half precision can hold
assignments   which operation computes in what, and the program that follows
simulation    an assignment by torch, rounded as a device rounds
bodies        what runs an assignment and is timed: the target, or torch and a cost model
sensitivity   each operation lowered alone
search        the fastest assignment that keeps the accuracy
pipeline      all of it, one after the other
results       tables, charts and the page
"""
