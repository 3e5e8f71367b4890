"""`qcn explain`: what a network made of one image, as a page to look at.

source      the network: from a bundle's weights or from a training run
picture     the image: from a file or from the bundle's golden ones, and what the network sees of it
fields      which pixels a place of a map depends on
inside      capsules, votes, and the weights by which routing shared the parts out, before and after each iteration
evidence    those weights followed from places of the image up to a class
drawing     heat maps as pictures, poses and votes as drawings in three dimensions
panels      what stands in each panel of the page
page        all of it as one HTML file; numbers: as JSON
"""
