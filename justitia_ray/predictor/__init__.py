"""What an application will cost, estimated when it arrives; pure, knows nothing of Ray or Redis."""
