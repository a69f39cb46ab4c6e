"""What the client and the containers agree on: files, environment, encodings, errors. Standard library only."""
