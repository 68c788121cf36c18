"""The laboratory: reports, agents of the papers' applications and the S3 rival; the extra `lab`."""
