"""Reports, agents of the papers' applications, and the predictor S3: the optional extra `lab`."""
