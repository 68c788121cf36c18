"""The S3 predictor of the papers: a DistilBERT that predicts costs from input texts."""
