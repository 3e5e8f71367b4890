"""`qcn sweep`: many training runs over lists and ranges of settings, of which weak ones are stopped early."""
