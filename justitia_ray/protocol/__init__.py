"""Messages between the processes, and HTTP bodies, headers and errors."""
