"""What the parts say to each other, and how errors are said over HTTP."""
