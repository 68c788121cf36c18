"""The S3 rival: a DistilBERT that predicts costs from input texts."""
