"""Messages between the processes; HTTP bodies, headers and errors."""
