"""What the parts say to each other."""
