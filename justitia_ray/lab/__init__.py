"""Reports, agents of the papers' applications and the S3 predictor: the optional extra `lab`."""
